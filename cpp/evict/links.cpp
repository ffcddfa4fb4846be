// All accesses are relaxed: links are hints, checked at each use.
#include "evict/links.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr int kMaxSiblings = 64, kMaxSteps = 4096;

std::uint32_t check_of(const Hot& h) { return std::uint32_t(h.key[0].load(kRelaxed)); }

std::uint32_t depth_of(const Hot& h) { return h.freq_depth.load(kRelaxed) >> 8; }

void set_depth(Hot& h, std::uint32_t depth) {
  if (depth > 0xffffff) depth = 0xffffff;
  h.freq_depth.store((h.freq_depth.load(kRelaxed) & 0xff) | depth << 8, kRelaxed);
}

}  // namespace

bool is_child(Arena& a, std::uint32_t x, std::uint32_t p) {
  const Hot& h = a.hot[x];
  return h.parent.load(kRelaxed) == p && is_ready(h.word.load(kRelaxed)) &&
         h.parent_check.load(kRelaxed) == check_of(a.hot[p]);
}

void link_child(Arena& a, std::uint32_t x, std::uint32_t p) {
  Hot& h = a.hot[x];
  if (p == kNone || !a.in_range(p) || p == x) {
    h.parent.store(kNone, kRelaxed);
    set_depth(h, 0);
    return;
  }
  Hot& up = a.hot[p];
  KVSHM_STEP("link.parent");
  h.parent.store(p, kRelaxed);
  h.parent_check.store(check_of(up), kRelaxed);
  set_depth(h, depth_of(up) + 1);
  std::uint32_t head = up.child.load(kRelaxed);
  for (int i = 0; i < 8; i++) {
    if (head == x) return;  // it is there
    KVSHM_STEP("link.sibling");
    h.sibling.store(head, kRelaxed);
    KVSHM_STEP("link.child");
    if (up.child.compare_exchange_weak(head, x, std::memory_order_release, kRelaxed)) return;
  }
}

void relink(Arena& a, std::uint32_t x, std::uint32_t p) {
  Hot& h = a.hot[x];
  const Hot& up = a.hot[p];
  if (h.parent.load(kRelaxed) == p && h.parent_check.load(kRelaxed) == check_of(up) &&
      up.child.load(kRelaxed) != kNone)
    return;
  link_child(a, x, p);
}

void unlink_head(Arena& a, std::uint32_t x) {
  const std::uint32_t p = a.hot[x].parent.load(kRelaxed);
  if (!a.in_range(p)) return;
  std::uint32_t head = x;
  KVSHM_STEP("link.unlink");
  a.hot[p].child.compare_exchange_strong(head, a.hot[x].sibling.load(kRelaxed), kRelaxed);
}

std::uint32_t first_child(Arena& a, std::uint32_t p) {
  Hot& up = a.hot[p];
  std::uint32_t x = up.child.load(kRelaxed);
  for (int i = 0; i < kMaxSiblings && a.in_range(x); i++) {
    if (is_child(a, x, p)) return x;
    std::uint32_t next = a.hot[x].sibling.load(kRelaxed), head = x;
    if (next == x) next = kNone;
    KVSHM_STEP("link.repair");
    up.child.compare_exchange_strong(head, next, kRelaxed);  // only if it is the head
    x = next;
  }
  return kNone;
}

std::uint32_t walk_to_leaf(Arena& a, std::uint32_t c, std::uint64_t* steps) {
  // Damaged links may lead round and round: who passes the same block again has no leaf (Brent's
  // way: the block looked out for moves on after 1, 2, 4 ... steps).
  std::uint32_t passed = kNone;
  for (int i = 0; i < kMaxSteps; i++) {
    if (!(i & (i - 1))) passed = c;
    const std::uint32_t x = first_child(a, c);
    if (x == kNone) return c;
    c = x;
    ++*steps;
    if (c == passed) break;
  }
  return kNone;
}

}  // namespace kvshm
