#include "blocks/leases.hpp"

#include <new>

namespace kvshm {

bool LeaseEntry::reserve(std::uint32_t n) {
  if (n <= capacity) return true;
  std::uint32_t want = capacity ? capacity : 16;
  while (want < n) want *= 2;
  std::uint32_t* p = new (std::nothrow) std::uint32_t[want];
  if (!p) return false;
  for (std::uint32_t i = 0; i < count; i++) p[i] = ids[i];
  ids.reset(p);
  capacity = want;
  return true;
}

LeaseEntry* Leases::at(std::uint32_t index) {
  if (index >= made_.load(std::memory_order_acquire)) return nullptr;
  return &chunks_[index / kChunk][index % kChunk];
}

LeaseEntry* Leases::take(std::uint32_t n, std::uint32_t* index) {
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
  const std::uint64_t token = std::uint64_t{++e->nonce} << 32 | (index + 1);
  e->token.store(token, std::memory_order_release);
  return token;
}

LeaseEntry* Leases::win(std::uint64_t token, std::uint32_t* index) {
  LeaseEntry* e = peek(token, index);
  if (!e || !e->token.compare_exchange_strong(token, 0, std::memory_order_acq_rel)) return nullptr;
  return e;
}

LeaseEntry* Leases::peek(std::uint64_t token, std::uint32_t* index) {
  if (!(token & 0xffffffffu)) return nullptr;
  *index = std::uint32_t(token) - 1;
  LeaseEntry* e = at(*index);
  return e && e->token.load(std::memory_order_acquire) == token ? e : nullptr;
}

void Leases::put(std::uint32_t index) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(index);  // never grows beyond what take() reserved
}

}  // namespace kvshm
