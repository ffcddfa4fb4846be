// SPDX-License-Identifier: Apache-2.0
// The lanes of what waits to be moved, alone: order, bounds, cancel, a successor, producers that die.
#include "tier/queues.hpp"

#include <thread>

#include "arena/attach.hpp"
#include "support.hpp"

namespace {
using namespace kvshm;
using namespace kvshm::tier;
using kvshm_test::Pool;

class Queues : public testing::Test {
 protected:
  Queues() { bring(); }
  ~Queues() override { take_down(*a_); }
  void bring() {
    kvshm_options o = KVSHM_OPTIONS_INIT;
    o.pin = KVSHM_OFF;
    o.flags = KVSHM_NO_HELPER;
    EXPECT_EQ(bring_up(Mode::kAttach, pool_.name.c_str(), o, &a_), 0) << kvshm_last_error();
  }
  bool add(unsigned lane, std::uint64_t what, std::uint32_t most = kLaneRoom) {
    return push(*a_, lane, what, what + 1000, most, &last_);
  }
  Pool pool_{{16, 4096}};
  std::unique_ptr<Arena> a_;
  std::uint64_t last_ = 0;
};

TEST_F(Queues, FirstInFirstOutInEachLane) {
  Intake in(*a_);
  EXPECT_FALSE(in.begin());
  for (std::uint64_t i = 1; i <= 5; i++) EXPECT_TRUE(add(kUsual, i));
  EXPECT_TRUE(add(kAsked, 9));
  Waiting w;
  ASSERT_TRUE(in.take(kAsked, &w));
  EXPECT_EQ(w.what[0], 9u);
  EXPECT_EQ(w.what[1], 1009u);
  EXPECT_FALSE(in.take(kAsked, &w));
  for (std::uint64_t i = 1; i <= 5; i++) {
    ASSERT_TRUE(in.take(kUsual, &w));
    EXPECT_EQ(w.what[0], i);
    EXPECT_FALSE(w.again);
  }
  EXPECT_FALSE(in.take(kUsual, &w));
  EXPECT_EQ(waiting(*a_, kUsual), 5u) << "taken, and not ended";
}

TEST_F(Queues, EndsInAnyOrderAndIsDoneInOrder) {
  Intake in(*a_);
  in.begin();
  std::uint64_t tickets[3];
  for (auto& t : tickets) {
    ASSERT_TRUE(add(kUsual, 1));
    t = last_;
  }
  Waiting w;
  for (int i = 0; i < 3; i++) ASSERT_TRUE(in.take(kUsual, &w));
  in.end(kUsual, tickets[2]);
  in.end(kUsual, tickets[1]);
  EXPECT_FALSE(ended(*a_, kUsual, tickets[1]));
  EXPECT_EQ(waiting(*a_, kUsual), 3u);
  in.end(kUsual, tickets[0]);
  EXPECT_TRUE(ended(*a_, kUsual, tickets[2]));
  EXPECT_EQ(waiting(*a_, kUsual), 0u);
}

TEST_F(Queues, AllThatWasTakenEndsAtOnce) {
  Intake in(*a_);
  in.begin();
  Waiting w;
  for (std::uint64_t i = 0; i < 5; i++) ASSERT_TRUE(add(kUsual, i));
  for (int i = 0; i < 3; i++) ASSERT_TRUE(in.take(kUsual, &w));
  in.end(kUsual, w.ticket - 1);
  in.end_all();
  EXPECT_EQ(waiting(*a_, kUsual), 2u);
  ASSERT_TRUE(in.take(kUsual, &w));
  EXPECT_EQ(w.what[0], 3u);
}

TEST_F(Queues, IsBounded) {
  Intake in(*a_);
  in.begin();
  for (std::uint64_t i = 0; i < 8; i++) EXPECT_TRUE(add(kLater, i, 8));
  EXPECT_FALSE(add(kLater, 8, 8));
  for (std::uint64_t i = 8; i < kLaneRoom; i++) ASSERT_TRUE(add(kLater, i));
  EXPECT_FALSE(add(kLater, 0));
  Waiting w;
  ASSERT_TRUE(in.take(kLater, &w));
  EXPECT_FALSE(add(kLater, 0)) << "taken, but not ended: a successor needs it";
  in.end(kLater, w.ticket);
  EXPECT_TRUE(add(kLater, 77));
  for (std::uint64_t i = 1; i < kLaneRoom; i++) ASSERT_TRUE(in.take(kLater, &w));
  ASSERT_TRUE(in.take(kLater, &w));
  EXPECT_EQ(w.what[0], 77u) << "a round later";
}

TEST_F(Queues, ASuccessorDoesAgainWhatHasNotEnded) {
  for (std::uint64_t i = 0; i < 6; i++) ASSERT_TRUE(add(kUsual, i));
  Waiting w;
  {
    Intake in(*a_);
    in.begin();
    for (int i = 0; i < 4; i++) ASSERT_TRUE(in.take(kUsual, &w));
    in.end(kUsual, w.ticket - 3);
    in.end(kUsual, w.ticket - 1);
  }
  Intake next(*a_);
  EXPECT_TRUE(next.begin());
  for (std::uint64_t i = 1; i < 6; i++) {
    ASSERT_TRUE(next.take(kUsual, &w));
    EXPECT_EQ(w.what[0], i);
    EXPECT_EQ(w.again, i < 4) << i;
    next.end(kUsual, w.ticket);
  }
  EXPECT_FALSE(next.take(kUsual, &w));
  EXPECT_EQ(waiting(*a_, kUsual), 0u);
}

TEST_F(Queues, CancelledUntilItIsTakenAndOnce) {
  for (std::uint64_t i = 1; i <= 4; i++) ASSERT_TRUE(push(*a_, kUsual, i, 10 + i, 64, &last_));
  Intake in(*a_);
  in.begin();
  Waiting w;
  ASSERT_TRUE(in.take(kUsual, &w));
  const kvshm_handle h[] = {{1, 11, 0}, {2, 12, 0}, {3, 99, 0}, {4, 14, 0}};
  EXPECT_EQ(cancel(*a_, h, 4), 2u) << "the first is taken, the third is another block";
  EXPECT_EQ(cancel(*a_, h, 4), 0u);
  ASSERT_TRUE(in.take(kUsual, &w));
  EXPECT_EQ(w.what[0], 3u);
  EXPECT_FALSE(in.take(kUsual, &w));
  EXPECT_EQ(in.left(kUsual), 0u);
}

TEST_F(Queues, OneOfCancelAndTakeWins) {
  Intake in(*a_);
  in.begin();
  std::uint32_t taken = 0, cancelled = 0;
  constexpr std::uint32_t kRounds = 20000;
  std::atomic<std::uint32_t> made{0};
  std::thread other([&] {
    for (std::uint32_t i = 0; i < kRounds; i++) {
      while (made.load() <= i) std::this_thread::yield();
      const kvshm_handle h{i + 1, i % 16, 0};
      cancelled += cancel(*a_, &h, 1);
    }
  });
  for (std::uint32_t i = 0; i < kRounds; i++) {
    ASSERT_TRUE(push(*a_, kAsked, i + 1, i % 16, kLaneRoom, nullptr));
    made = i + 1;
    Waiting w;
    while (in.take(kAsked, &w)) {
      taken++;
      in.end(kAsked, w.ticket);
    }
  }
  other.join();
  EXPECT_EQ(taken + cancelled, kRounds);
}

TEST_F(Queues, WhatIsGatheredIsDueWhenSomebodySaysSo) {
  Intake in(*a_);
  in.begin();
  EXPECT_FALSE(in.due(kLater));
  ASSERT_TRUE(add(kLater, 1));
  EXPECT_FALSE(in.due(kLater));
  EXPECT_GT(in.oldest(kLater), 0);
  flush(*a_);
  ASSERT_TRUE(add(kLater, 2));
  EXPECT_TRUE(in.due(kLater));
  Waiting w;
  ASSERT_TRUE(in.take(kLater, &w));
  EXPECT_FALSE(in.due(kLater)) << "what came later is gathered on";
}

// A producer that died between the claim and the turn costs its place, after a moment.
TEST_F(Queues, APlaceThatNobodyFillsIsPassedOver) {
  ASSERT_TRUE(add(kUsual, 1));
  a_->queues->lanes[kUsual].tail.fetch_add(1);  // what a dead one leaves
  ASSERT_TRUE(add(kUsual, 3));
  Intake in(*a_);
  in.begin();
  Waiting w;
  ASSERT_TRUE(in.take(kUsual, &w));
  in.end(kUsual, w.ticket);
  EXPECT_FALSE(in.take(kUsual, &w)) << "it may be filled yet";
  bool got = false;
  for (int i = 0; i < 100 && !got; i++, usleep(10000)) got = in.take(kUsual, &w);
  ASSERT_TRUE(got);
  EXPECT_EQ(w.what[0], 3u);
  in.end(kUsual, w.ticket);
  EXPECT_EQ(waiting(*a_, kUsual), 0u);
}

// Whatever stands in the words, nothing is read outside and nothing runs for ever.
TEST_F(Queues, DamagedWordsCostBlocksOnly) {
  for (std::uint64_t garbage : {std::uint64_t{1}, ~std::uint64_t{0}, std::uint64_t{1} << 40}) {
    Lane& l = a_->queues->lanes[kUsual];
    for (auto* word : {&l.head, &l.done, &l.tail}) {
      l.head = l.done = l.tail = 0;
      word->store(garbage);
      Intake in(*a_);
      in.begin();
      Waiting w;
      for (int i = 0; i < 5000 && in.take(kUsual, &w); i++) in.end(kUsual, w.ticket);
      bool again = false;  // it is a lane again, soon
      for (int i = 0; i < 100 && !again; i++, usleep(10000)) {
        add(kUsual, 5, 16);
        while (in.take(kUsual, &w)) {
          again |= w.what[0] == 5;
          in.end(kUsual, w.ticket);
        }
      }
      EXPECT_TRUE(again) << garbage;
    }
  }
}

TEST_F(Queues, ALaneThatIsDamagedGoesOnAtOnce) {
  Intake in(*a_);
  in.begin();
  Lane& l = a_->queues->lanes[kUsual];
  Waiting w;
  for (const unsigned bit : {12u, 40u, 63u}) {
    ASSERT_TRUE(add(kUsual, 1));
    l.tail ^= std::uint64_t{1} << bit;
    for (int i = 0; i < 3; i++)
      if (in.take(kUsual, &w)) in.end(kUsual, w.ticket);
    ASSERT_TRUE(add(kUsual, 7)) << bit;
    ASSERT_TRUE(in.take(kUsual, &w)) << bit;
    EXPECT_EQ(w.what[0], 7u);
    in.end(kUsual, w.ticket);
    EXPECT_EQ(waiting(*a_, kUsual), 0u);
  }
}

TEST_F(Queues, ManyProducers) {
  Intake in(*a_);
  in.begin();
  constexpr std::uint64_t kEach = 20000, kThreads = 3;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; t++)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < kEach;)
        if (push(*a_, kUsual, t + 1, i, 64, nullptr))
          i++;
        else
          std::this_thread::yield();
    });
  std::uint64_t next[kThreads] = {}, wrong = 0;
  for (std::uint64_t n = 0; n < kEach * kThreads;) {
    Waiting w;
    if (!in.take(kUsual, &w)) continue;
    wrong += w.what[0] - 1 >= kThreads || next[w.what[0] - 1]++ != w.what[1];
    in.end(kUsual, w.ticket);
    n++;
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0u) << "each producer's in its order, none twice, none lost";
}

}  // namespace
