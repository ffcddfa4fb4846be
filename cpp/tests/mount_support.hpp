// SPDX-License-Identifier: Apache-2.0
// File systems of a test's own, on loop devices: small ones, with sectors of a size, frozen.
#pragma once
#include <linux/fs.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>

#include "disk_support.hpp"

namespace kvshm_test {

// An ext4, gone with its scope. why_not() says why there is none here.
class Ext4 {
 public:
  // sector: of the device; 0 = as it comes. inodes: 0 = as it comes.
  explicit Ext4(std::uint64_t mib = 64, unsigned sector = 0, unsigned inodes = 0)
      : path_(std::filesystem::temp_directory_path() / fresh_name("ext4")) {
    std::filesystem::create_directory(path_);
    const std::string image = path_.string() + ".img";
    std::ofstream(image).close();
    std::filesystem::resize_file(image, mib * kMiB);
    why_not_ = make(image, sector, inodes);
    std::filesystem::remove(image);  // the device keeps it
    if (!device_.empty()) {          // and the mount keeps the device
      kvshm::File d(open(device_.c_str(), O_RDWR | O_CLOEXEC));
      ioctl(d.get(), LOOP_CLR_FD, 0);
    }
    if (mounted_) root_ = kvshm::File(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  Ext4(const Ext4&) = delete;
  ~Ext4() {
    thaw();
    root_.reset();
    if (mounted_ && umount2(path_.c_str(), MNT_DETACH)) std::perror("umount");
    std::error_code none;
    std::filesystem::remove(path_, none);
  }
  bool freeze() { return frozen_ = ioctl(root_.get(), FIFREEZE, 0) == 0; }
  void thaw() {
    if (frozen_) ioctl(root_.get(), FITHAW, 0);
    frozen_ = false;
  }
  const std::filesystem::path& path() const { return path_; }
  std::string file(const char* name = "tier") const { return (path_ / name).string(); }
  const std::string& why_not() const { return why_not_; }

 private:
  std::string make(const std::string& image, unsigned sector, unsigned inodes) {
    std::string size = sector ? " --sector-size " + std::to_string(sector) : "";
    if (!run("losetup -f --show" + size + " " + image, &device_)) return "losetup" + size;
    const std::string few = inodes ? " -N " + std::to_string(inodes) : "";
    if (!run("mkfs.ext4 -q" + few + " " + device_)) return "mkfs.ext4";
    if (mount(device_.c_str(), path_.c_str(), "ext4", 0, nullptr))
      return std::string("mount: ") + std::strerror(errno);
    mounted_ = true;
    return "";
  }
  static bool run(const std::string& command, std::string* said = nullptr) {
    FILE* p = popen(("PATH=$PATH:/sbin:/usr/sbin " + command + " 2>/dev/null").c_str(), "re");
    if (!p) return false;
    std::array<char, 256> line{};
    if (fgets(line.data(), line.size(), p) && said)
      *said = std::string(line.data(), strcspn(line.data(), "\n"));
    return pclose(p) == 0;
  }
  std::filesystem::path path_;
  std::string why_not_, device_;
  kvshm::File root_;
  bool mounted_ = false, frozen_ = false;
};

#define NEEDS_EXT4(name, ...) \
  Ext4 name{__VA_ARGS__};     \
  if (!name.why_not().empty()) GTEST_SKIP() << "no file system of our own: " << name.why_not()

}  // namespace kvshm_test
