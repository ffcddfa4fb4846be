#include "blocks/objects.hpp"

#include <errno.h>

#include <algorithm>

#include "blocks/counts.hpp"
#include "blocks/registration.hpp"
#include "blocks/sweep.hpp"
#include "index/digest.hpp"
#include "index/index.hpp"
#include "index/match.hpp"

namespace kvshm {
namespace {

void derive_keys(Object& o, std::size_t n) {
  o.keys.resize(n);
  o.keys[0] = o.key;
  std::uint8_t head[KVSHM_KEY_BYTES], key[KVSHM_KEY_BYTES];
  o.key.store(head);
  for (std::size_t i = 1; i < n; i++) {
    digest d("kvshm.v1.object", sizeof key, head);
    d.u32(std::uint32_t(i));
    d.finish(key);
    o.keys[i] = Key::load(key);
    if (o.keys[i].none()) o.keys[i].lo = 1;
  }
}

// Keys are stored as they are passed.
const kvshm_key* raw(const std::vector<Key>& keys) {
  return reinterpret_cast<const kvshm_key*>(keys.data());
}

std::uint64_t blocks_for(const Arena& a, std::uint64_t bytes) {
  return a.block_bytes ? (bytes + a.block_bytes - 1) / a.block_bytes : 0;
}

}  // namespace

int create_object(Arena& a, Key key, std::uint64_t bytes, FillSpec spec, Object* o) {
  const std::uint64_t n = blocks_for(a, bytes);
  if (!n || n > a.nblocks)
    return fail(-EINVAL, "an object of %llu bytes needs %llu blocks, the arena has %u",
                (unsigned long long)bytes, (unsigned long long)n, a.nblocks);
  const unsigned there = peek(a, key);
  if (there & 1) return -EEXIST;
  if (there & 2) return -KVSHM_EPENDING;
  o->key = key;
  o->bytes = bytes;
  derive_keys(*o, n);
  o->blocks.resize(n);
  spec.flags = (spec.flags & KVSHM_NO_CACHE) | KVSHM_UNCHAINED;
  spec.parent = {0, KVSHM_NONE, 0};
  spec.contiguous = true;
  if (int rc =
          allocate(a, std::uint32_t(n), raw(o->keys), spec, o->blocks.data(), nullptr, nullptr)) {
    o->blocks.clear();
    return rc;
  }
  // The chain's leaf is the head: parent of block i is block i + 1.
  for (std::size_t i = 0; i + 1 < n; i++)
    a.hot[o->blocks[i].id].parent.store(o->blocks[i + 1].id, std::memory_order_relaxed);
  a.cold[o->blocks[0].id].user.store(bytes, std::memory_order_relaxed);
  return 0;
}

int commit_object(Arena& a, Object& o, bool* visible) {
  if (o.committed) return -KVSHM_ESTATE;
  *visible = true;
  for (std::size_t i = o.blocks.size(); i-- > 0;) {
    std::uint8_t result = KVSHM_ST_NONE;
    kvshm_handle held = o.blocks[i];
    if (i == 0 && !*visible)  // its parts cannot all be found: nor shall its head
      a.hot[held.id].flags.fetch_or(kLastWanted, std::memory_order_relaxed);
    const int rc = register_block(a, o.blocks[i], o.keys[i], KVSHM_REJECT, &held, &result);
    if (rc) return rc;
    if (result != KVSHM_ST_PRIMARY && result != KVSHM_ST_PRESENT) *visible = false;
    if (i && held.id != o.blocks[i].id)
      a.hot[o.blocks[i - 1].id].parent.store(held.id, std::memory_order_relaxed);
    o.blocks[i] = held;
  }
  o.committed = true;
  return 0;
}

int get_object(Arena& a, Key key, Object* o) {
  const Found head = lookup(a, key, true);
  a.count(kStat_lookups_total);
  a.count(head.how == Take::kHeld ? kStat_hits_total : kStat_misses_total);
  if (head.how != Take::kHeld) return -ENOENT;
  a.count(kStat_touches_total);
  o->key = key;
  o->bytes = a.cold[head.id].user.load(std::memory_order_relaxed);
  const std::uint64_t n = blocks_for(a, o->bytes);
  const kvshm_handle first = {a.hot[head.id].seq.load(std::memory_order_relaxed), head.id, 0};
  if (!n || n > a.nblocks) {  // an ordinary block
    give_back(a, head.id);
    return -ENOENT;
  }
  try {
    derive_keys(*o, n);
    std::vector<std::uint32_t> ids(n, kNone);
    o->blocks.assign(1, first);
    o->blocks.reserve(n);
    match_each(a, raw(o->keys) + 1, std::uint32_t(n - 1), true, ids.data() + 1);
    for (std::size_t i = 1; i < n; i++)
      if (ids[i] != kNone)
        o->blocks.push_back({a.hot[ids[i]].seq.load(std::memory_order_relaxed), ids[i], 0});
  } catch (const std::bad_alloc&) {
    if (o->blocks.empty())
      give_back(a, head.id);
    else
      drop_object(a, *o);
    return -ENOMEM;
  }
  o->committed = true;
  if (o->blocks.size() == n) return 0;
  drop_object(a, *o);
  evict_key(a, key);  // a head without its parts is of no use
  return -ENOENT;
}

void drop_object(Arena& a, Object& o) {
  Ticks ticks(a, std::uint32_t(o.blocks.size()));
  for (const kvshm_handle& h : o.blocks)  // the head, its leaf, first
    if (holds_ready(a, h.id, h.seq))
      release_hold(a, h.id, ticks);
    else if (fills(a, h.id, h.seq))
      give_back(a, h.id, ticks);
  o.blocks.clear();
}

}  // namespace kvshm
