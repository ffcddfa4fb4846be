// SPDX-License-Identifier: Apache-2.0
// The free map and its summary by themselves: hints that are stale or missing, and the order in
// which bit, summary and region are written.
#include <algorithm>
#include <set>
#include <thread>

#include "blocks/alloc.hpp"
#include "blocks/close.hpp"
#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm;
using namespace kvshm_test;

namespace {

using ids_t = std::vector<std::uint32_t>;

ids_t claim(Arena& a, std::uint32_t n) {
  ids_t ids(n);
  ids.resize(claim_free(a, n, ids.data()));
  return ids;
}

bool mapped(Arena& a, std::uint32_t id) { return a.free_map[id / 64].load() >> (id % 64) & 1; }
bool summarized(Arena& a, std::uint32_t region) {
  return a.summary[region / 64].load() >> (region % 64) & 1;
}
void unclaim(Arena& a, const ids_t& ids) { unclaim_free(a, std::uint32_t(ids.size()), ids.data()); }

// Two regions and a bit; small blocks.
struct FreeMap : testing::Test {
  Pool pool{{.blocks = 2 * kRegionBlocks + 130, .block_bytes = 64}};
  Arena& a = *pool.a->impl;
};

}  // namespace

TEST_F(FreeMap, GivesEveryFreeBlockOnceAndThenNone) {
  std::set<std::uint32_t> seen;
  for (std::uint32_t n = 1;; n = n * 3 % 1000) {
    const ids_t got = claim(a, n);
    for (std::uint32_t id : got) {
      ASSERT_TRUE(a.in_range(id));
      ASSERT_TRUE(seen.insert(id).second) << id << " twice";
      ASSERT_EQ(a.hot[id].word.load() & (kStateMask | kHolderMask), make_word(0, kFilling, a.me));
      ASSERT_FALSE(mapped(a, id));
    }
    if (got.size() < n) break;
  }
  EXPECT_EQ(seen.size(), a.nblocks);
  for (std::uint32_t r = 0; r < 3; r++) EXPECT_FALSE(summarized(a, r)) << r;
  EXPECT_EQ(claim(a, 1).size(), 0u);

  // What comes back is what can be had again, in whichever region.
  const ids_t back = {5, kRegionBlocks - 1, kRegionBlocks, 2 * kRegionBlocks + 129};
  unclaim(a, back);
  for (std::uint32_t r = 0; r < 3; r++) EXPECT_TRUE(summarized(a, r)) << r;
  ids_t again = claim(a, 100);
  std::sort(again.begin(), again.end());
  EXPECT_EQ(again, back);
  unclaim(a, ids_t(seen.begin(), seen.end()));
  EXPECT_EQ(stats(pool.a).blocks_free, a.nblocks);
  EXPECT_EQ(broken(pool.a), "");
}

TEST_F(FreeMap, AHintThatLiesIsDroppedAndNotHandedOut) {
  const handles_t held = fill_blocks(pool.a, 3);
  const kvshm_handle cached = make_held(pool.a, key_of(1));
  ids_t liars = {held[0].id, held[1].id, held[2].id, cached.id};
  for (std::uint32_t id : liars) a.free_map[id / 64].fetch_or(std::uint64_t{1} << (id % 64));
  a.free_map[a.nblocks / 64].fetch_or(std::uint64_t{1} << 63);  // no such block
  const ids_t all = claim(a, a.nblocks);
  EXPECT_EQ(all.size(), a.nblocks - 4u);
  for (std::uint32_t id : liars) {
    EXPECT_EQ(std::count(all.begin(), all.end(), id), 0) << id;
    EXPECT_FALSE(mapped(a, id));
  }
  EXPECT_EQ(state(a.hot[cached.id].word.load()), kReady);
  unclaim(a, all);
  EXPECT_EQ(abort_fills(pool.a, held), 0);
  EXPECT_EQ(drop(pool.a, cached), 0);
}

TEST_F(FreeMap, ALostSummaryIsFoundBySummarize) {
  unclaim(a, claim(a, 1));
  a.summary[0].store(0);
  EXPECT_EQ(claim(a, 1).size(), 0u);
  summarize(a, 1);
  EXPECT_FALSE(summarized(a, 0));
  EXPECT_TRUE(summarized(a, 1));
  const ids_t one = claim(a, 1);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0] / kRegionBlocks, 1u);
  unclaim(a, one);
}

// A block is freed behind the claimer's back, in a word it has already looked at, while the summary
// bit still stands; then the claimer drops that bit. Whoever comes next must find the block.
TEST_F(FreeMap, FreedWhileTheRegionIsFoundEmpty) {
  ids_t all = claim(a, a.nblocks);
  std::sort(all.begin(), all.end());
  ASSERT_EQ(all.size(), a.nblocks);
  const std::uint32_t behind = 3, last = kRegionBlocks - 2;
  for (const char* at : {"alloc.claim", "free.unsummarized"}) {
    a.free_cursor.store(0);
    unclaim(a, {last});
    bool once = false;
    ids_t got;
    {
      Steps steps([&](const char* name) {
        if (once || std::strcmp(name, at) != 0) return;
        once = true;
        unclaim(a, {behind});
      });
      got = claim(a, 2);
    }
    ASSERT_TRUE(once) << at;
    ASSERT_EQ(got, ids_t{last}) << at;
    EXPECT_TRUE(mapped(a, behind)) << at;
    EXPECT_TRUE(summarized(a, 0)) << at;
    ASSERT_EQ(claim(a, 1), ids_t{behind}) << at;
  }
  unclaim(a, all);
}

// The free map's bit first, then the summary's: the other way round a claimer that finds the map
// empty would drop a summary bit that belongs to a block to come.
TEST_F(FreeMap, TheBitIsThereBeforeTheSummary) {
  const ids_t all = claim(a, a.nblocks);
  ASSERT_FALSE(summarized(a, 1));
  int seen = 0;
  {
    Steps steps([&](const char* name) {
      if (std::strcmp(name, "free.bit") != 0) return;
      seen++;
      EXPECT_TRUE(mapped(a, kRegionBlocks + 7));
      EXPECT_FALSE(summarized(a, 1));
    });
    unclaim(a, {kRegionBlocks + 7});
  }
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(summarized(a, 1));
  unclaim(a, all);
}

// Who dies between a map's bit and the word leaves a hint missing; only the region says where.
TEST_F(FreeMap, TheRegionIsEnteredBeforeABitIsTaken) {
  auto entered = [&](std::uint32_t r) { return a.my_regions[0].load() >> r & 1; };
  ASSERT_FALSE(entered(1));
  ASSERT_FALSE(entered(2));
  int seen = 0;
  Steps steps([&](const char* name) {
    if (std::strcmp(name, "alloc.unmapped") != 0) return;
    seen++;
    EXPECT_TRUE(entered(1));
  });
  a.free_cursor.store(kRegionBlocks + 70);
  const ids_t one = claim(a, 1);
  EXPECT_EQ(one, ids_t{kRegionBlocks + 64});  // from the cursor's word on
  EXPECT_EQ(seen, 1);
  EXPECT_FALSE(entered(2));
  unclaim(a, one);
}

TEST_F(FreeMap, ARunIsOfNeighboursOrNothing) {
  ids_t run(100);
  ASSERT_TRUE(claim_run(a, 100, run.data()));
  for (std::uint32_t i = 0; i < 100; i++) EXPECT_EQ(run[i], run[0] + i);
  unclaim(a, run);

  ids_t all = claim(a, a.nblocks);
  std::sort(all.begin(), all.end());
  ids_t holes,
      given;  // free: two of three in some words, and one run of 70 across words and regions
  for (std::uint32_t id : all) {
    const bool wide = id >= kRegionBlocks - 30 && id < kRegionBlocks + 40;
    (wide || (id % 3 != 2 && id / 64 % 4 == 1) ? given : holes).push_back(id);
  }
  unclaim(a, given);
  ids_t none(75);
  EXPECT_FALSE(claim_run(a, 75, none.data()));
  ids_t wide(70);
  ASSERT_TRUE(claim_run(a, 70, wide.data()));
  for (std::uint32_t i = 0; i < 70; i++) EXPECT_EQ(wide[i], kRegionBlocks - 30 + i);
  unclaim(a, wide);

  // A hint in its midst that lies: all the run's blocks come back.
  const std::uint32_t liar = kRegionBlocks + 40;
  a.free_map[liar / 64].fetch_or(std::uint64_t{1} << (liar % 64));
  EXPECT_FALSE(claim_run(a, 71, none.data()));
  EXPECT_EQ(stats(pool.a).blocks_free, given.size());
  ASSERT_TRUE(claim_run(a, 70, wide.data()));
  unclaim(a, wide);
  unclaim(a, holes);
  EXPECT_EQ(stats(pool.a).blocks_free, a.nblocks);
}

// Two have taken the same hint (scrub had set it again): one of them gets the block.
TEST_F(FreeMap, OneHintTakenTwiceIsOneBlock) {
  ids_t rival;
  bool once = false;
  ids_t got;
  {
    Steps steps([&](const char* name) {
      if (once || std::strcmp(name, "alloc.claim") != 0) return;
      once = true;
      a.free_map[0].fetch_or(1);
      rival = claim(a, 1);
    });
    a.free_cursor.store(0);
    got = claim(a, 2);
  }
  EXPECT_EQ(rival, ids_t{0});
  EXPECT_EQ(got, (ids_t{1, 2}));
  unclaim(a, rival);
  unclaim(a, got);
  EXPECT_EQ(stats(pool.a).blocks_free, a.nblocks);
}

TEST_F(FreeMap, ThreadsShareItOut) {
  std::vector<ids_t> got(4);
  std::vector<std::thread> threads;
  for (auto& mine : got)
    threads.emplace_back([&] {
      for (ids_t more = claim(a, 7); !more.empty(); more = claim(a, 7))
        mine.insert(mine.end(), more.begin(), more.end());
    });
  for (auto& t : threads) t.join();
  ids_t all;
  for (auto& mine : got) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), a.nblocks);
  unclaim(a, all);
  EXPECT_EQ(stats(pool.a).blocks_free, a.nblocks);
}
