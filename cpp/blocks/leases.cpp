#include "blocks/leases.hpp"

#include <new>
#include <thread>

#include "arena/step.hpp"

namespace kvshm {

bool LeaseEntry::reserve(std::uint32_t n) {
  if (n <= capacity) return true;
  std::uint64_t want = capacity ? capacity : 16;
  while (want < n) want *= 2;
  std::uint32_t* p = new (std::nothrow) std::uint32_t[want];
  if (!p) return false;
  for (std::uint32_t i = 0; i < count; i++) p[i] = ids[i];
  ids.reset(p);
  capacity = std::uint32_t(want < UINT32_MAX ? want : UINT32_MAX);
  return true;
}

LeaseEntry* Leases::at(std::uint32_t index) {
  if (index >= made_.load(std::memory_order_acquire)) return nullptr;
  return &chunks_[index / kChunk][index % kChunk];
}

LeaseEntry* Leases::take(std::uint32_t n, std::uint32_t* index) {
  if (KVSHM_STEP_ERROR("lease.take")) return nullptr;
  LeaseEntry* e;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      const std::uint32_t made = made_.load(std::memory_order_relaxed), c = made / kChunk;
      if (c >= kChunks) return nullptr;
      chunks_[c].reset(new (std::nothrow) LeaseEntry[kChunk]);
      if (!chunks_[c]) return nullptr;
      try {
        free_.reserve(made + kChunk);
      } catch (const std::bad_alloc&) {
        chunks_[c].reset();
        return nullptr;
      }
      for (std::uint32_t i = kChunk; i-- > 0;) free_.push_back(made + i);
      made_.store(made + kChunk, std::memory_order_release);
    }
    *index = free_.back();
    free_.pop_back();
    e = &chunks_[*index / kChunk][*index % kChunk];
  }
  e->count = 0;
  if (!e->reserve(n)) {
    put(*index);
    return nullptr;
  }
  return e;
}

std::uint64_t Leases::commit(LeaseEntry* e, std::uint32_t index) {
  e->nonce = (e->nonce + 1) & 0x7fffffff;
  const std::uint64_t token = std::uint64_t{e->nonce} << 32 | (index + 1);
  e->token.store(token, std::memory_order_release);
  return token;
}

LeaseEntry* Leases::take_token(std::uint64_t token, std::uint64_t to, std::uint32_t* index) {
  if (!(token & 0xffffffffu) || (token & kBorrowed)) return nullptr;
  *index = std::uint32_t(token) - 1;
  LeaseEntry* e = at(*index);
  if (!e) return nullptr;
  for (int spins = 0; spins < 1000000; spins++) {
    std::uint64_t v = token;
    if (e->token.compare_exchange_strong(v, to, std::memory_order_acq_rel)) return e;
    if (v != (token | kBorrowed)) return nullptr;
    std::this_thread::yield();  // a borrower is done after a copy or a few releases
  }
  return nullptr;
}

LeaseEntry* Leases::win(std::uint64_t token, std::uint32_t* index) {
  return take_token(token, 0, index);
}

LeaseEntry* Leases::borrow(std::uint64_t token, std::uint32_t* index) {
  return take_token(token, token | kBorrowed, index);
}

void Leases::give_back(LeaseEntry* e, std::uint64_t token) {
  e->token.store(token, std::memory_order_release);
}

void Leases::put(std::uint32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(index);  // never grows beyond what take() reserved
}

}  // namespace kvshm
