// The files of a tier: making and sizing them, O_DIRECT, where a slot lies, whose they are.
//
// Owner: the arena whose image (NAME-g3) has the uuid in the superblock. Every attachment holds a
// read lock on byte 2^62 of each file, by the description that its transfers use; a ring that has it
// registered holds the lock until its last transfer has landed. Who adopts a file takes the write
// lock first, so not before the last transfer of the former owner is over.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "arena/lock.hpp"
#include "device/guarded_ring.hpp"
#include "kvshm.h"
#include "tier/record.hpp"

namespace kvshm::tier {

struct Shape {
  std::uint64_t block_bytes = 0, slot_bytes = 0, slots = 0, records_offset = 0, data_offset = 0;
  unsigned files = 0;
};

struct Place {
  unsigned file;
  std::uint64_t offset;
};

class Files {
 public:
  Files() = default;
  Files(const Files&) = delete;
  ~Files();
  // Opens or makes them; nothing is written to a file that is there. wish: block_bytes > 0.
  // share: the arena's object, whose group and mode new files get.
  int open(const kvshm_tier_options& o, std::uint64_t block_bytes, const char* share);
  // Locks them for the image with this uuid: theirs already, or adopted, which writes superblocks.
  // names: of the arena, for others' messages. fingerprint and identity are written.
  struct Owner {
    const std::uint8_t *uuid, *fingerprint;
    const char *name, *identity;
    std::uint32_t epoch;
    std::function<int()> before_adoption;  // under the write lock; not 0: no adoption
  };
  int own(const Owner& owner, std::int64_t deadline_ms);
  // The superblock of a file with this epoch, ready to be written at *offset, and that it was.
  void with_epoch(unsigned file, std::uint32_t epoch, std::byte* page, std::uint64_t* offset);
  void wrote_epoch(unsigned file, std::uint32_t epoch);

  const Shape& shape() const { return shape_; }
  const std::vector<int>& descriptors() const { return raw_; }
  bool direct() const { return direct_; }
  std::uint32_t align() const { return align_; }  // of offsets
  std::uint32_t memory_align() const { return memory_align_; }
  std::uint32_t epoch() const { return epoch_; }  // as the file has it
  std::string why() const {                       // not direct
    std::lock_guard<std::mutex> lock(why_mutex_);
    return why_;
  }
  const std::string& path() const { return path_; }
  bool allows_buffered() const { return direct_wish_ != KVSHM_REQUIRE; }
  void go_buffered(int cause);  // a transfer was refused for its alignment
  Place slot(std::uint64_t s) const {
    return {unsigned(s % shape_.files), shape_.data_offset + s / shape_.files * shape_.slot_bytes};
  }
  Place page(std::uint64_t p) const { return {0, shape_.records_offset + p * kPageBytes}; }
  std::uint64_t pages() const { return (shape_.slots + kRecordsPerPage - 1) / kRecordsPerPage; }

 private:
  static void forget_in_child();
  void watch();
  int open_one(const char* path, std::uint32_t direct, const char* share, File* out);
  int measure(const kvshm_tier_options& o, std::uint64_t block_bytes);
  int lay_out(std::uint64_t budget, std::uint64_t block_bytes);
  int reserve();  // room in the file system
  int read_superblock(unsigned file, Superblock* out) const;
  int write_superblock(unsigned file, const Superblock& s);
  int check(const Superblock& s, unsigned file, const std::uint8_t* fingerprint) const;
  int lock_all(bool write, std::int64_t deadline_ms);

  Shape shape_;
  std::vector<File> files_;
  std::vector<int> raw_;
  std::vector<Known> known_;
  Files *next_ = nullptr, *previous_ = nullptr;  // of all here, under the claim mutex
  std::vector<std::string> paths_;
  std::vector<Superblock> blocks_;  // as read; magic 0 where there was none
  std::string path_;
  mutable std::mutex why_mutex_;
  std::string why_;  // under why_mutex_
  // relaxed: changed by the thread of the transfers; others show them
  std::atomic<bool> direct_{false};
  std::atomic<std::uint32_t> align_{1}, memory_align_{1};
  std::uint32_t epoch_ = 0, direct_wish_ = 0;
};

// An aligned piece of memory; null when there is none.
class Bounce {
 public:
  explicit Bounce(std::size_t bytes);
  Bounce(Bounce&& o) noexcept : p_(o.p_), bytes_(o.bytes_) { o.p_ = nullptr; }
  Bounce(const Bounce&) = delete;
  ~Bounce();
  std::byte* get() const { return p_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* p_;
  std::size_t bytes_;
};

}  // namespace kvshm::tier
