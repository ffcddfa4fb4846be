// SPDX-License-Identifier: Apache-2.0
// The hint links of a chain: who is a child of whom, the way to a leaf, and what is made of links
// that are stale, lost or led in a circle.
#include "evict/links.hpp"

#include "blocks/sweep.hpp"
#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm;
using namespace kvshm_test;

namespace {

struct Links : testing::Test {
  Pool pool{{.blocks = 64, .block_bytes = 64}};
  Arena& a = *pool.a->impl;

  // Held, so that nothing moves but what a test moves.
  kvshm_handle block(std::uint64_t key, kvshm_handle parent = {0, KVSHM_NONE, 0}) {
    return make_held(pool.a, key_of(key), parent);
  }
  void evict(kvshm_handle h) {
    ASSERT_EQ(drop(pool.a, h), 0);
    ASSERT_TRUE(evict_life(a, h));
  }
  std::uint32_t child(std::uint32_t p) { return a.hot[p].child.load(); }
  std::uint32_t sibling(std::uint32_t x) { return a.hot[x].sibling.load(); }
  std::uint32_t depth(std::uint32_t x) { return a.hot[x].freq_depth.load() >> 8; }
  std::uint32_t walk(std::uint32_t from) {
    steps = 0;
    return walk_to_leaf(a, from, &steps);
  }
  std::uint64_t steps = 0;
};

}  // namespace

TEST_F(Links, AChainIsWalkedToItsLeaf) {
  handles_t chain = {block(0)};
  for (std::uint64_t i = 1; i < 20; i++) chain.push_back(block(i, chain.back()));
  for (std::uint32_t i = 0; i < 20; i++) {
    EXPECT_EQ(depth(chain[i].id), i);
    EXPECT_EQ(walk(chain[i].id), chain[19].id);
    EXPECT_EQ(steps, 19 - i);
    EXPECT_EQ(i > 0 && is_child(a, chain[i].id, chain[i - 1].id), i > 0);
    EXPECT_FALSE(i > 1 && is_child(a, chain[i].id, chain[i - 2].id));
  }
  evict(chain[19]);
  EXPECT_EQ(walk(chain[0].id), chain[18].id);
}

TEST_F(Links, ChildrenAreListedTheLatestFirst) {
  const kvshm_handle p = block(0), x = block(1, p), y = block(2, p), z = block(3, p);
  EXPECT_EQ(child(p.id), z.id);
  EXPECT_EQ(sibling(z.id), y.id);
  EXPECT_EQ(sibling(y.id), x.id);
  EXPECT_EQ(sibling(x.id), kNone);
  link_child(a, z.id, p.id);  // again: the list does not bite its tail
  EXPECT_EQ(sibling(z.id), y.id);
  EXPECT_EQ(first_child(a, p.id), z.id);
}

TEST_F(Links, TheHeadThatGoesIsTakenOffTheList) {
  const kvshm_handle p = block(0), x = block(1, p), y = block(2, p);
  unlink_head(a, x.id);  // not the head: nothing happens
  EXPECT_EQ(child(p.id), y.id);
  evict(y);
  EXPECT_EQ(child(p.id), x.id);
  evict(x);
  EXPECT_EQ(child(p.id), kNone);
  EXPECT_EQ(walk(p.id), p.id);
  unlink_head(a, p.id);  // a root has no parent
}

TEST_F(Links, WhoMeetsADeadHeadMendsTheList) {
  const kvshm_handle p = block(0), x = block(1, p), y = block(2, p), z = block(3, p);
  evict(y);  // in the middle: it stays listed
  a.hot[p.id].child.store(z.id);
  EXPECT_EQ(drop(pool.a, z), 0);
  const word_t w = a.hot[z.id].word.load();
  a.hot[z.id].word.store(with_state(w, kEvicting) | a.me);  // as its evictor would, who then died
  EXPECT_EQ(first_child(a, p.id), x.id);
  EXPECT_EQ(child(p.id), x.id) << "the dead heads are still there";
  a.hot[z.id].word.store(w);
}

// The id of a parent lives on with another key: its old children are not those of the new block.
TEST_F(Links, AReusedParentHasNoChildrenOfItsLastLife) {
  const kvshm_handle p = block(0), x = block(1, p);
  evict(p);
  ASSERT_EQ(a.hot[x.id].parent.load(), p.id);
  EXPECT_FALSE(is_child(a, x.id, p.id));
  kvshm_handle again{};
  for (std::uint64_t k = 100; k < 200 && again.id != p.id; k++) again = block(k);
  ASSERT_EQ(again.id, p.id);
  a.hot[p.id].child.store(x.id);  // even if the link had survived
  EXPECT_FALSE(is_child(a, x.id, p.id));
  EXPECT_EQ(first_child(a, p.id), kNone);
  EXPECT_EQ(child(p.id), kNone);
  relink(a, x.id, p.id);  // a match has seen x follow this block
  EXPECT_TRUE(is_child(a, x.id, p.id));
  EXPECT_EQ(walk(p.id), x.id);
}

TEST_F(Links, ALostHeadIsFoundAgainByTheNextMatch) {
  const kvshm_handle p = block(0), x = block(1, p);
  a.hot[p.id].child.store(kNone);
  EXPECT_EQ(walk(p.id), p.id);
  relink(a, x.id, p.id);
  EXPECT_EQ(walk(p.id), x.id);
  const std::uint32_t before = sibling(x.id);
  relink(a, x.id, p.id);  // nothing is wrong: nothing is written
  EXPECT_EQ(sibling(x.id), before);
}

TEST_F(Links, NonsenseAsAParentMakesARoot) {
  const kvshm_handle p = block(0), x = block(1, p);
  for (const std::uint32_t bad : {kNone, a.nblocks, 0x7fffffffu, x.id}) {
    link_child(a, x.id, p.id);
    ASSERT_EQ(depth(x.id), 1u);
    link_child(a, x.id, bad);
    EXPECT_EQ(a.hot[x.id].parent.load(), kNone) << bad;
    EXPECT_EQ(depth(x.id), 0u);
  }
  a.hot[x.id].parent.store(0x7fffffff);
  unlink_head(a, x.id);
}

// Links are hints that anybody may have scribbled on: every walk ends.
TEST_F(Links, CirclesEnd) {
  const kvshm_handle p = block(0), x = block(1, p);
  a.hot[x.id].child.store(p.id);  // p below x below p
  a.hot[p.id].parent.store(x.id);
  a.hot[p.id].parent_check.store(std::uint32_t(a.hot[x.id].key[0].load()));
  EXPECT_EQ(walk(p.id), kNone);
  EXPECT_LT(steps, 8u);
  // A longer one, a way off, as damage may leave it.
  handles_t chain = {block(20)};
  for (std::uint64_t i = 21; i < 50; i++) chain.push_back(block(i, chain.back()));
  a.hot[chain[29].id].child.store(chain[7].id);
  a.hot[chain[7].id].parent.store(chain[29].id);
  a.hot[chain[7].id].parent_check.store(std::uint32_t(a.hot[chain[29].id].key[0].load()));
  a.hot[chain[6].id].child.store(chain[7].id);
  for (std::uint32_t i = 7; i < 30; i++) {
    EXPECT_EQ(walk(chain[i].id), kNone);
    EXPECT_LT(steps, 4 * 23u);
  }

  const std::int64_t start = kvshm_test::now_ms();
  const kvshm_handle q = block(10), r = block(11), s = block(12);  // nobody's children
  a.hot[q.id].child.store(r.id);
  a.hot[r.id].sibling.store(r.id);
  EXPECT_EQ(first_child(a, q.id), kNone);
  a.hot[q.id].child.store(r.id);
  a.hot[r.id].sibling.store(s.id);
  a.hot[s.id].sibling.store(r.id);
  EXPECT_EQ(first_child(a, q.id), kNone);
  a.hot[q.id].child.store(0x7fffffff);
  EXPECT_EQ(first_child(a, q.id), kNone);
  EXPECT_LT(kvshm_test::now_ms() - start, 2000) << "64 siblings are looked at, not more";
}
