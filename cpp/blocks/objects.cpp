#include "blocks/objects.hpp"

#include <errno.h>

#include <algorithm>

#include "blocks/counts.hpp"
#include "blocks/refusal.hpp"
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
  return a.block_bytes && bytes ? (bytes - 1) / a.block_bytes + 1 : 0;
}

// Who announces the head puts the object; nobody else's part can then come under its keys. One that
// is there is left from an object that lost its head: it must not become part of this one.
int announce_all(Arena& a, Object& o) {
  for (std::size_t i = 0; i < o.blocks.size(); i++) {
    std::uint8_t st = announce(a, o.blocks[i].id, o.keys[i]);
    KVSHM_STEP("object.announced");
    if (i && st == KVSHM_ST_EXISTS && evict_key(a, o.keys[i]))
      st = announce(a, o.blocks[i].id, o.keys[i]);
    if (st == KVSHM_ST_FULL)
      return fail(-KVSHM_ENOSPACE, "no index entry is free for block %zu of the object", i);
    if (st == kHeldExpired) return -KVSHM_EPENDING;  // readers of one that is over: soon
    if (st == KVSHM_ST_EXISTS && i == 0) return -EEXIST;
    if (st != KVSHM_ST_ANNOUNCED) return -KVSHM_EPENDING;
  }
  return 0;
}

}  // namespace

int create_object(Arena& a, Key key, std::uint64_t bytes, FillSpec spec, Object* o) {
  const std::uint64_t n = blocks_for(a, bytes);
  if (!n)
    return fail(-EINVAL, "an object of %llu bytes in blocks of %llu", (unsigned long long)bytes,
                (unsigned long long)a.block_bytes);
  if (n > a.nblocks)
    return refuse(a,
                  fail(-KVSHM_ETOOLARGE, "an object of %llu bytes: the arena has %u blocks of %llu",
                       (unsigned long long)bytes, a.nblocks, (unsigned long long)a.block_bytes),
                  KVSHM_REFUSED_SIZE);
  const unsigned there = peek(a, key);
  if (there & 1) return -EEXIST;
  if (there & 2) return -KVSHM_EPENDING;
  o->key = key;
  o->bytes = bytes;
  derive_keys(*o, n);
  o->blocks.resize(n);
  spec.flags = (spec.flags & (KVSHM_NO_CACHE | KVSHM_NO_EVICT)) | KVSHM_UNCHAINED | KVSHM_QUIET;
  spec.parent = {0, KVSHM_NONE, 0};
  spec.contiguous = n > 1;
  int rc = allocate(a, std::uint32_t(n), raw(o->keys), spec, o->blocks.data(), nullptr, nullptr);
  if (rc) {
    o->blocks.clear();
    return rc;
  }
  for (std::size_t i = 0; i < n; i++) {
    const std::uint32_t id = o->blocks[i].id;
    begin_part(a, o->blocks[i], 0);  // whoever finds and joins the fill cannot publish it
    // The chain's leaf is the head: parent of block i is block i + 1.
    if (i + 1 < n) a.hot[id].parent.store(o->blocks[i + 1].id, std::memory_order_relaxed);
  }
  KVSHM_STEP("object.bytes");
  a.cold[o->blocks[0].id].user.store(bytes, std::memory_order_relaxed);
  KVSHM_STEP("object.quiet");
  rc = announce_all(a, *o);
  if (rc) drop_object(a, *o);
  return rc;
}

int commit_object(Arena& a, Object& o) {
  if (o.committed) return -KVSHM_ESTATE;
  for (std::size_t i = o.blocks.size(); i-- > 0;) {  // the head last
    std::uint8_t result = KVSHM_ST_NONE;
    if (holds_ready(a, o.blocks[i].id, o.blocks[i].seq)) continue;  // by a commit that failed
    if (int rc = arrive_part(a, o.blocks[i], 0)) return rc;
    kvshm_handle held;
    if (int rc = register_block(a, o.blocks[i], o.keys[i], KVSHM_ALLOW, &held, &result)) return rc;
    KVSHM_STEP("object.part");
  }
  o.committed = true;
  return 0;
}

int get_object(Arena& a, Key key, Object* o) {
  const Found head = lookup(a, key, true);
  if (head.how == Take::kOver) return -KVSHM_EQUOTA;
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
  o->committed = true;
  bool over = false;
  try {
    derive_keys(*o, n);
    std::vector<std::uint32_t> ids(n, kNone);
    o->blocks.reserve(n);
    o->blocks.push_back(first);
    // Nobody can put another object of this key while its head is held: these are its parts.
    match_each(a, raw(o->keys) + 1, std::uint32_t(n - 1), true, ids.data() + 1, &over);
    for (std::size_t i = 1; i < n; i++)
      if (ids[i] != kNone)
        o->blocks.push_back({a.hot[ids[i]].seq.load(std::memory_order_relaxed), ids[i], 0});
  } catch (const std::bad_alloc&) {  // before match_each: only the head is held
    o->blocks.clear();
    give_back(a, head.id);
    return -ENOMEM;
  }
  if (o->blocks.size() == n) return 0;
  drop_object(a, *o);
  if (over) return -KVSHM_EQUOTA;  // nothing is missing, it is only too large
  KVSHM_STEP("object.headless");
  evict_life(a, first);  // a head without its parts only keeps others from putting it anew
  return -ENOENT;
}

void drop_object(Arena& a, Object& o) {
  // Committed: the head, its chain's leaf, gets the oldest stamp. Else it is closed last, since who
  // finds it gone puts the object anew, and must not meet parts of this one.
  if (!o.committed) std::reverse(o.blocks.begin(), o.blocks.end());
  Ticks ticks(a, std::uint32_t(o.blocks.size()));
  for (const kvshm_handle& h : o.blocks)
    if (holds_ready(a, h.id, h.seq))
      release_hold(a, h.id, ticks);
    else if (fills(a, h.id, h.seq))
      give_back(a, h.id, ticks);
  o.blocks.clear();
}

}  // namespace kvshm
