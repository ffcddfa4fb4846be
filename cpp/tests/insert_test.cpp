// SPDX-License-Identifier: Apache-2.0
// Two inserters of one key, in every order in which their steps can fall; and what is left of the
// sixteen places of a key.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "blocks/alloc.hpp"
#include "capi/call.hpp"
#include "index/index.hpp"
#include "support.hpp"

using namespace kvshm;
using namespace kvshm_test;

namespace {

constexpr Key kKey{0x0123456789abcdef, 0xfedcba9876543210};

struct InsertTest : testing::Test {
  Pool pool{{.blocks = 64, .block_bytes = 64}};
  Arena& a = *pool.a->impl;

  std::uint32_t filling(Key key) {  // a block of mine with its key written
    std::uint32_t id = kNone;
    EXPECT_EQ(claim_free(a, 1, &id), 1u);
    a.hot[id].store_key(key);
    return id;
  }
  void give_back(std::uint32_t id) { unclaim_free(a, 1, &id); }

  std::vector<std::uint64_t> entries(Key key) {  // in its buckets, of any block
    const Spot s = spot_of(key, a.nbuckets);
    std::vector<std::uint64_t> found;
    for (const std::uint64_t b : {s.b1, s.b2})
      for (unsigned i = 0; i < kIndexWays; i++)
        if (const std::uint64_t e = a.index[b * kIndexWays + i].load()) found.push_back(e);
    return found;
  }
};

// Lets two threads go on in turns: each runs from one step point of insert to the next.
class Turns {
 public:
  explicit Turns(std::vector<int> order) : order_(std::move(order)) {}
  void wait_for(int who) {
    std::unique_lock lock(mutex_);
    const auto mine = [&] { return next() == who || over_[1 - who]; };
    if (!turned_.wait_for(lock, std::chrono::seconds(20), mine)) late_ = true;
  }
  void passed(int who) {  // my turn ends here
    std::lock_guard lock(mutex_);
    if (next() == who) at_++;
    turned_.notify_all();
  }
  void ended(int who) {
    std::lock_guard lock(mutex_);
    over_[who] = true;
    turned_.notify_all();
  }
  bool late() const { return late_; }

 private:
  int next() {  // turns of who has ended are skipped; behind the order both may run, 0 first
    while (at_ < order_.size() && over_[order_[at_]]) at_++;
    return at_ < order_.size() ? order_[at_] : over_[0] ? 1 : 0;
  }
  std::vector<int> order_;
  std::size_t at_ = 0;
  bool over_[2] = {false, false}, late_ = false;
  std::mutex mutex_;
  std::condition_variable turned_;
};

thread_local int self = -1;

}  // namespace

// Each has four stretches: to where it takes a place, until its tentative entry stands, until it
// is about to commit, to the end (or round again). All orders of them, with either inserter's entry
// in the lower place.
TEST_F(InsertTest, OfTwoInsertersExactlyOneWins) {
  std::vector<int> order = {0, 0, 0, 0, 1, 1, 1, 1};
  int first_wins = 0, runs = 0;
  do {
    for (const unsigned crowd : {0u, 1u}) {  // one more entry turns the choice of bucket around
      std::vector<std::uint32_t> ids = {filling(kKey), filling(kKey)};
      const Spot s = spot_of(kKey, a.nbuckets);
      ASSERT_NE(s.b1, s.b2);
      auto& extra = a.index[s.b1 * kIndexWays + 7];
      if (crowd) extra.store(entry::make(s.tag ^ 1, 60));
      Turns turns(order);
      Insert how[2];
      std::uint32_t other[2] = {kNone, kNone};
      {
        Steps steps([&](const char* name) {
          if (self < 0 || std::strncmp(name, "insert.", 7) != 0) return;
          turns.passed(self);
          turns.wait_for(self);
        });
        std::vector<std::thread> threads;
        for (int who : {0, 1})
          threads.emplace_back([&, who] {
            self = who;
            turns.wait_for(who);
            how[who] = insert_if_absent(a, ids[who], kKey, &other[who]);
            turns.ended(who);
          });
        for (auto& t : threads) t.join();
      }
      std::string what;
      for (int who : order) what += char('0' + who);
      ASSERT_FALSE(turns.late()) << what;
      extra.store(0);
      const int winner = how[0] == Insert::kDone ? 0 : 1;
      ASSERT_EQ(how[winner], Insert::kDone) << what << ": nobody has inserted it";
      ASSERT_EQ(how[1 - winner], Insert::kExists) << what << ": both have";
      EXPECT_EQ(other[1 - winner], ids[winner]) << what;
      EXPECT_EQ(entries(kKey), std::vector{entry::make(s.tag, ids[winner])}) << what;
      first_wins += winner == 0;
      runs++;
      for (std::uint32_t id : ids) give_back(id);
      ASSERT_EQ(entries(kKey).size(), 0u) << "an entry outlived its block";
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(runs, 2 * 70);
  EXPECT_GT(first_wins, 0);
  EXPECT_LT(first_wins, runs);
}

// The same tag in the same buckets, and yet another key: both have their entry.
TEST_F(InsertTest, AKeyThatOnlyLooksAlikeIsNoRival) {
  const Key alike{kKey.lo, kKey.hi ^ 1};
  const Spot s = spot_of(kKey, a.nbuckets), t = spot_of(alike, a.nbuckets);
  ASSERT_TRUE(s.b1 == t.b1 && s.b2 == t.b2 && s.tag == t.tag);
  const std::uint32_t x = filling(kKey), y = filling(alike);
  std::uint32_t other = kNone;
  EXPECT_EQ(insert_if_absent(a, x, kKey, &other), Insert::kDone);
  EXPECT_EQ(insert_if_absent(a, y, alike, &other), Insert::kDone);
  EXPECT_EQ(entries(kKey).size(), 2u);
  erase_entries(a, x, kKey);
  EXPECT_EQ(entries(kKey), std::vector{entry::make(s.tag, y)});
  give_back(x);
  give_back(y);
}

TEST_F(InsertTest, SixteenPlacesAreFilledThenItIsFull) {
  const Spot s = spot_of(kKey, a.nbuckets);
  std::vector<std::uint32_t> ids;
  std::uint32_t other = kNone;
  for (std::uint64_t i = 0; i < 16; i++) {
    const Key key{kKey.lo, kKey.hi ^ i};
    ids.push_back(filling(key));
    ASSERT_EQ(insert_if_absent(a, ids.back(), key, &other), Insert::kDone) << i;
    unsigned used[2] = {0, 0};
    for (unsigned j = 0; j < kIndexWays; j++) {
      used[0] += a.index[s.b1 * kIndexWays + j].load() != 0;
      used[1] += a.index[s.b2 * kIndexWays + j].load() != 0;
    }
    // The first bucket up to its half, then the emptier one.
    // The first bucket to its half; then the emptier one, which the second is until they are even.
    const unsigned apart = used[0] > used[1] ? used[0] - used[1] : used[1] - used[0];
    ASSERT_TRUE(used[1] == 0 ? used[0] <= 5 : used[1] < 4 || apart <= 1)
        << i << ": " << used[0] << ", " << used[1];
  }
  const Key late{kKey.lo, kKey.hi ^ 16};
  ids.push_back(filling(late));
  EXPECT_EQ(insert_if_absent(a, ids.back(), late, &other), Insert::kFull);
  EXPECT_EQ(entries(kKey).size(), 16u);
  erase_entries(a, ids[3], {kKey.lo, kKey.hi ^ 3});
  EXPECT_EQ(insert_if_absent(a, ids.back(), late, &other), Insert::kDone);
  for (std::uint32_t id : ids) give_back(id);
  EXPECT_EQ(entries(kKey).size(), 0u);
}

TEST_F(InsertTest, OnlyWhatIsTentativeIsErasedAsSuch) {
  const Spot s = spot_of(kKey, a.nbuckets);
  const std::uint32_t x = filling(kKey);
  std::uint32_t other = kNone;
  ASSERT_EQ(insert_if_absent(a, x, kKey, &other), Insert::kDone);
  erase_tentative(a, x, kKey);
  EXPECT_EQ(entries(kKey).size(), 1u);
  auto& free_place = a.index[s.b2 * kIndexWays + 5];
  free_place.store(entry::make(s.tag, x) | entry::kTentative);  // as a dead inserter leaves it
  erase_tentative(a, x + 1, kKey);                              // of another block
  EXPECT_EQ(entries(kKey).size(), 2u);
  erase_tentative(a, x, kKey);
  EXPECT_EQ(entries(kKey), std::vector{entry::make(s.tag, x)});
  free_place.store(entry::make(s.tag, x) | entry::kTentative);
  erase_entries(a, x, kKey);
  EXPECT_EQ(entries(kKey).size(), 0u);
  give_back(x);
}
