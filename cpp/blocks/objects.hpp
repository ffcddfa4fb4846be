// Objects: n blocks under one head key.
//
// Block 0 has the head key, block i a key derived from it. They form a chain whose leaf is the head,
// so that eviction takes the head first. The head is announced first and registered last: one
// process at a time puts an object, its parts are all of that put, and the head's presence says that
// it was whole. A get makes sure by holding every block.
#pragma once
#include <memory>
#include <vector>

#include "arena/arena.hpp"
#include "blocks/alloc.hpp"

namespace kvshm {

struct Object {
  Key key;
  std::uint64_t bytes = 0;
  bool committed = false;
  std::vector<kvshm_handle> blocks;  // block i at [i]
  std::vector<Key> keys;
};

int create_object(Arena& a, Key key, std::uint64_t bytes, FillSpec spec, Object* out);
int commit_object(Arena& a, Object& o);
int get_object(Arena& a, Key key, Object* out);
void drop_object(Arena& a, Object& o);
// Pieces in order, neighbours joined: f(address, bytes).
template <class F>
void each_piece(const Arena& a, const Object& o, std::uint64_t offset, std::uint64_t n, F f);

}  // namespace kvshm

template <class F>
void kvshm::each_piece(const Arena& a, const Object& o, std::uint64_t offset, std::uint64_t n,
                       F f) {
  std::byte* start = nullptr;
  std::uint64_t length = 0;
  while (n) {
    const std::uint64_t i = offset / a.block_bytes, within = offset % a.block_bytes;
    const std::uint64_t here = a.block_bytes - within < n ? a.block_bytes - within : n;
    std::byte* p = a.data + o.blocks[i].id * a.block_bytes + within;
    if (start && p == start + length) {
      length += here;
    } else {
      if (start) f(start, length);
      start = p;
      length = here;
    }
    offset += here;
    n -= here;
  }
  if (start) f(start, length);
}
