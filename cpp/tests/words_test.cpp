// SPDX-License-Identifier: Apache-2.0
// Small parts by themselves: words, geometry, copies, the hand's step.
#include <cstring>
#include <numeric>
#include <random>

#include "arena/layout.hpp"
#include "blocks/word.hpp"
#include "device/copy.hpp"
#include "evict/choose.hpp"
#include "support.hpp"

using namespace kvshm;

TEST(Word, FieldsDoNotTouchEachOther) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; i++) {
    const std::uint64_t seq = random();
    const word_t who = random() & kHolderMask;
    const State s = State(random() % 8);
    word_t w = make_word(seq, s, who);
    ASSERT_EQ(state(w), s);
    ASSERT_EQ(holders(w), who);
    ASSERT_EQ(w & kGenMask, gen_bits(seq));
    ASSERT_EQ(clock_of(w), 0u);
    for (unsigned c = 1; c <= 5; c++) {
      w = touched(w);
      ASSERT_EQ(clock_of(w), c < 3 ? c : 3);
      ASSERT_EQ(holders(w), who);
      ASSERT_EQ(state(w), s);
      ASSERT_EQ(w & kGenMask, gen_bits(seq));
    }
    const word_t v = with_state(with_holders(w, ~who & kHolderMask), kEvicting);
    ASSERT_EQ(state(v), kEvicting);
    ASSERT_EQ(holders(v), ~who & kHolderMask);
    ASSERT_EQ(v & (kGenMask | kClockMask), w & (kGenMask | kClockMask));
  }
}

TEST(Word, ReadyIsReadyAndNothingElse) {
  for (unsigned s = 0; s < 8; s++) {
    const word_t w = make_word(~0ull, State(s), kHolderMask);
    EXPECT_EQ(is_ready(w), s == kReady || s == kReadyLast) << s;
  }
  word_t all = 0;
  for (unsigned s = 0; s < kSlots; s++) {
    EXPECT_EQ(all & holder_bit(s), 0u);
    all |= holder_bit(s);
  }
  EXPECT_EQ(all, kHolderMask);
}

namespace {

struct Section {
  std::uint64_t at, size;
};

void check_sections(const Geometry& g, std::uint64_t page) {
  const std::uint64_t n = g.blocks;
  const Section sections[] = {{0, sizeof(Superblock)},
                              {g.slots_off, sizeof(SlotRecord) * kSlots},
                              {g.regions_off, g.region_words * 8 * kSlots},
                              {g.hot_off, n * 64},
                              {g.cold_off, n * 64},
                              {g.index_off, g.buckets * 64},
                              {g.free_off, (n + 63) / 64 * 8},
                              {g.summary_off, (n + kRegionBlocks - 1) / kRegionBlocks / 8 + 8},
                              {g.ghost_off, ghost_places(n) * 16},
                              {g.uses_off, uses_lines(n) * 64},
                              {g.shadow_off, shadow_bytes(n)},
                              {g.tenants_off, kTenants * 64},
                              {g.marks_off, kMarks * 16},
                              {g.events_off, kEvents * 64},
                              {g.data_off, n * g.block_bytes}};
  std::uint64_t end = 0;
  for (const Section& s : sections) {
    ASSERT_EQ(s.at % kPage, 0u);
    ASSERT_GE(s.at, end);  // in order, none overlaps
    end = s.at + s.size;
  }
  ASSERT_LE(end, g.bytes);
  ASSERT_EQ(g.data_off % page, 0u);
  ASSERT_GE(g.region_words * 64, (n + kRegionBlocks - 1) / kRegionBlocks);
  // 16 bytes of index a block: at most half full with one entry each.
  ASSERT_GE(g.buckets * kIndexWays, 2 * n);
}

}  // namespace

TEST(Layout, AnySizeAddsUpAndIsComputedAgain) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 4000; i++) {
    const std::uint64_t page = random() % 4 ? kPage : kHugePage;
    const std::uint64_t block_bytes = 64 * (random() % (1ull << (random() % 18)));
    Geometry g{}, again{};
    if (i % 2) {
      const std::uint64_t blocks = 1 + random() % (1ull << (1 + random() % 22));
      ASSERT_TRUE(compute_geometry(0, block_bytes, blocks, page, &g));
      ASSERT_EQ(g.blocks, blocks);
    } else {
      const std::uint64_t bytes = (8ull << 20) + random() % (1ull << (24 + random() % 16));
      if (!compute_geometry(bytes, block_bytes, 0, page, &g)) continue;
      ASSERT_EQ(g.bytes, (bytes + page - 1) / page * page);
      // As many as fit: one more would not.
      Geometry more{};
      ASSERT_FALSE(compute_geometry(bytes, block_bytes, g.blocks + 1, page, &more) &&
                   more.bytes <= g.bytes);
    }
    check_sections(g, page);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(compute_geometry(0, g.block_bytes, g.blocks, page, &again));
    again.bytes = g.bytes;
    ASSERT_TRUE(same_geometry(g, again));
  }
}

TEST(Layout, SenselessSizesAreRefused) {
  Geometry g{};
  EXPECT_FALSE(compute_geometry(0, 64, 0, kPage, &g));            // neither
  EXPECT_FALSE(compute_geometry(1 << 20, 63, 0, kPage, &g));      // not a multiple of 64
  EXPECT_FALSE(compute_geometry(4096, 64, 0, kPage, &g));         // not even the superblock
  EXPECT_FALSE(compute_geometry(0, 64, 0xffffffffu, kPage, &g));  // ids are 32 bits, one reserved
  EXPECT_FALSE(compute_geometry(0, 1ull << 57, 1, kPage, &g));
  EXPECT_FALSE(compute_geometry(0, 1ull << 50, 1 << 20, kPage, &g));
  EXPECT_FALSE(compute_geometry(~0ull, 64, 0, kPage, &g));
  EXPECT_FALSE(compute_geometry(8 << 20, 1 << 20, 100, kPage, &g));  // 100 MiB into 8
}

TEST(Layout, TheHashIsTheSameEveryTime) {
  EXPECT_EQ(layout_hash(), layout_hash());
  EXPECT_NE(layout_hash(), 0u);
}

// Every size around the switch to streaming stores, every alignment of both ends: exactly the bytes.
TEST(Copy, AllSizesAndAlignments) {
  constexpr std::size_t kMax = (256 << 10) + 1024;
  std::vector<unsigned char> from(kMax + 256), to(kMax + 256);
  std::mt19937 random(3);
  for (auto& b : from) b = static_cast<unsigned char>(random());
  std::vector<std::size_t> sizes = {0, 1, 2, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097};
  for (std::size_t d : {0, 1, 63, 64, 255, 256, 257}) sizes.push_back((256 << 10) + d);
  sizes.push_back((256 << 10) - 1);
  for (std::size_t n : sizes)
    for (std::size_t s : {0, 1, 8, 31, 63})
      for (std::size_t d : {0, 1, 16, 33, 63}) {
        std::memset(to.data(), 0xee, to.size());
        kvshm_stream_copy(to.data() + 64 + d, from.data() + s, n);
        ASSERT_EQ(std::memcmp(to.data() + 64 + d, from.data() + s, n), 0)
            << n << " " << s << " " << d;
        ASSERT_EQ(to[63 + d], 0xee) << "a byte before, " << n;
        ASSERT_EQ(to[64 + d + n], 0xee) << "a byte behind, " << n;
      }
  const std::string variant = kvshm_stream_copy_variant();
  EXPECT_TRUE(variant == "avx512" || variant == "avx2" || variant == "plain") << variant;
}

TEST(Hand, VisitsEveryBlockOnceARound) {
  for (std::uint32_t n = 1; n < 3000; n += n < 200 ? 1 : 97) {
    const std::uint32_t step = hand_step(n);
    EXPECT_EQ(std::gcd(step, n), 1u) << n;
    EXPECT_LT(step, n + 1);
    if (n <= 10) continue;
    EXPECT_NEAR(double(step) / n, 0.618, 0.3) << n;  // never a neighbour
    EXPECT_GT(step, 1u);
  }
}
