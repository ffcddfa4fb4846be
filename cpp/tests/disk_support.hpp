// SPDX-License-Identifier: Apache-2.0
// Disks for the tests of transfers: a file of random bytes, and a control group that makes it
// slow; and who holds the lock bytes of an arena meanwhile.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "arena/lock.hpp"
#include "support.hpp"

namespace kvshm_test {

inline constexpr std::uint32_t kMiB = 1 << 20;
inline constexpr std::uint8_t kBlank = 0xee;  // no byte of a source file has this value

// A file on a disk that can be read past the page cache. "": there is none here, and why.
class Source {
 public:
  explicit Source(unsigned mib) {
    path = std::filesystem::temp_directory_path() / fresh_name("source");
    std::mt19937_64 random(7);
    std::ofstream out(path, std::ios::binary);
    std::vector<char> buf(kMiB);
    for (unsigned i = 0; i < mib; i++) {
      for (char& c : buf) c = char(random() % kBlank);
      out.write(buf.data(), kMiB);
    }
    out.close();
    kvshm::File f(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (f) fsync(f.get());
  }
  ~Source() { std::filesystem::remove(path); }
  kvshm::File direct() const {
    return kvshm::File(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  }
  std::string content(std::size_t at, std::size_t n) const {
    std::ifstream in(path, std::ios::binary);
    in.seekg(std::streamoff(at));
    std::string s(n, '\0');
    in.read(s.data(), std::streamsize(n));
    return s;
  }
  std::filesystem::path path;
};

// A control group in which the file's disk is slow; works() says whether there could be one.
class SlowDisk {
 public:
  // write: 0 = as fast as it is.
  SlowDisk(int fd, std::uint64_t read_bytes_per_s, std::uint64_t write_bytes_per_s = 0) {
    why_not_ = make(fd, read_bytes_per_s, write_bytes_per_s);
  }
  ~SlowDisk() {
    for (int i = 0; !group_.empty() && rmdir(group_.c_str()) && errno == EBUSY && i < 1000; i++)
      usleep(10000);  // the kernel empties it a moment after a death
  }
  void take(pid_t pid) {
    if (works() && !(std::ofstream(group_ / "cgroup.procs") << pid << std::endl))
      why_not_ = "the group takes no process";
  }
  bool works() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }

 private:
  std::string make(int fd, std::uint64_t read, std::uint64_t write) {
    namespace fs = std::filesystem;
    struct stat st;
    if (fstat(fd, &st)) return "fstat";
    fs::path disk = "/sys/dev/block/" + std::to_string(major(st.st_dev)) + ":" +
                    std::to_string(minor(st.st_dev));
    std::error_code none;
    if (!fs::exists(disk, none)) return "the file lies on no block device";
    disk = fs::canonical(disk);
    if (fs::exists(disk / "partition")) disk = disk.parent_path();  // throttles know no partitions
    std::string number;
    std::ifstream(disk / "dev") >> number;
    const fs::path root = "/sys/fs/cgroup";
    const bool v1 = fs::is_directory(root / "blkio", none);
    group_ = (v1 ? root / "blkio" : root) / fresh_name("kvshm");
    if (!fs::create_directory(group_, none)) return group_.string() + ": " + none.message();
    for (const bool reads : {true, false}) {
      if (!(reads ? read : write)) continue;
      const char* v1_knob =
          reads ? "blkio.throttle.read_bps_device" : "blkio.throttle.write_bps_device";
      std::ofstream knob(group_ / (v1 ? v1_knob : "io.max"));
      knob << number
           << (v1      ? " "
               : reads ? " rbps="
                       : " wbps=")
           << (reads ? read : write) << std::endl;
      if (!knob) return "no throttle in " + group_.string();
    }
    return "";
  }
  std::filesystem::path group_;
  std::string why_not_;
};

inline bool byte_is_held(const std::string& arena, off_t byte) {
  kvshm::File f(open(("/dev/shm/kvshm." + arena).c_str(), O_RDONLY | O_CLOEXEC));
  return kvshm::byte_locked(f.get(), byte) == 1;
}

inline bool becomes_free(const std::string& arena, off_t byte, int limit_ms) {
  const std::int64_t end = now_ms() + limit_ms;
  while (byte_is_held(arena, byte))
    if (now_ms() > end) return false;
  return true;
}

}  // namespace kvshm_test
