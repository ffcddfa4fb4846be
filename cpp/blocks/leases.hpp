// The table of leases: process-private; a lease owns n holds and is given back once.
//
// Thread safety: take/free slots under a mutex (a few ns uncontended); a lease's ids belong to
// whoever won its token. A token is (nonce:31 << 32 | index + 1): used twice, it is -EBADF. Bit 63
// is set while a thread borrows the lease.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace kvshm {

struct LeaseEntry {
  std::atomic<std::uint64_t> token{0};  // 0: free or being given back
  std::uint32_t nonce = 0, count = 0, capacity = 0;
  std::unique_ptr<std::uint32_t[]> ids;  // kept for the next lease in this place
  bool reserve(std::uint32_t n);         // false: out of memory
};

class Leases {
 public:
  // An entry with room for n ids and no valid token yet; nullptr: out of memory.
  LeaseEntry* take(std::uint32_t n, std::uint32_t* index);
  // Makes it valid.
  std::uint64_t commit(LeaseEntry* e, std::uint32_t index);
  // Wins the lease for good (its token becomes 0), or nullptr. Waits for a borrower.
  LeaseEntry* win(std::uint64_t token, std::uint32_t* index);
  // Borrows it for a short look or change; give_back() makes it valid again.
  LeaseEntry* borrow(std::uint64_t token, std::uint32_t* index);
  void give_back(LeaseEntry* e, std::uint64_t token);
  void put(std::uint32_t index);

 private:
  static constexpr std::uint32_t kChunk = 256, kChunks = 4096;
  LeaseEntry* at(std::uint32_t index);
  LeaseEntry* take_token(std::uint64_t token, std::uint64_t to, std::uint32_t* index);
  static constexpr std::uint64_t kBorrowed = std::uint64_t{1} << 63;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::atomic<std::uint32_t> made_{0};
  std::unique_ptr<LeaseEntry[]> chunks_[kChunks];
};

}  // namespace kvshm
