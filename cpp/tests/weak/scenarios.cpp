// SPDX-License-Identifier: Apache-2.0
// The paths of the core that depend on order, each between the processes that race there. Threads
// stand for processes. `bytes` is the payload: any unordered access to it is a data race.
#include "weak/scenarios.hpp"

#include <cstdio>
#include <memory>
#include <ostream>
#include <streambuf>

#include "weak/world.hpp"

namespace weak {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
using Bytes = rl::var<std::uint64_t>;
constexpr int kLooks = 6;  // of a reader: one alone would seldom come in between

template <class Derived, unsigned N>
struct Suite : rl::test_suite<Derived, N> {
  World& w = world();
  void after() { forget_all(); }
};

// Announced: the payload before READY; who finds the key READY sees it.
struct Publish : Suite<Publish, 2> {
  Bytes bytes;
  void before() {
    w.begin();
    w.filling(0, 0, kA, true);
    w.watch_word(0);
    bytes($) = 0;
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 0) {
      bytes($) = kA.lo;
      publish_fill(a, 0, false);
    } else if (lookup(a, kA, false).how == Take::kHeld) {
      RL_ASSERT(bytes($) == kA.lo);
      give_back(a, 0);
    }
  }
};

// Not announced: payload, key, entry, READY; who finds the entry sees all of them.
struct Register : Suite<Register, 2> {
  Bytes bytes;
  void before() {
    w.begin();
    w.filling(0, 0, {}, false);
    w.watch_word(0);
    w.watch_key(0);
    w.watch(w.index[0]);
    w.watch(w.hot[0].seq);
    bytes($) = 0;
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 0) {
      bytes($) = kA.lo;
      kvshm_handle out;
      std::uint8_t result;
      RL_ASSERT(register_block(a, {kFirst, 0, 0}, kA, KVSHM_ALLOW, &out, &result) == 0);
    } else {
      for (int i = 0; i < kLooks; i++) {
        if (lookup(a, kA, false).how != Take::kHeld) continue;
        RL_ASSERT(bytes($) == kA.lo);
        give_back(a, 0);
      }
    }
  }
};

// A victim of another key is filled anew while somebody looks its old key up.
struct Reuse : Suite<Reuse, 2> {
  Bytes bytes;
  void before() {
    w.begin();
    w.ready(0, kA);
    w.watch_word(0);
    w.watch_key(0);
    w.watch(w.index[0]);
    bytes($) = kA.lo;
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 0) {
      if (!claim_evictable(a, 0)) return;
      end_life(a, 0);
      w.hot[0].word.store(make_word(kFirst + 1, kFilling, a.me), std::memory_order_release);
      enter(a, 0);
      w.hot[0].store_key(kB);
      bytes($) = kB.lo;
      publish_fill(a, 0, false);
    } else {
      for (int i = 0; i < kLooks; i++) {
        if (lookup_at(a, kA, false, 0).how != Take::kHeld) continue;
        RL_ASSERT(bytes($) == kA.lo);
        give_back(a, 0);
      }
    }
  }
};

// A reader's last look at the payload is over before its block is written again.
struct Release : Suite<Release, 2> {
  Bytes bytes;
  void before() {
    w.begin();
    w.ready(0, kA);
    w.hot[0].word.store(make_word(kFirst, kReady, w.of[1].me), kRelaxed);
    w.of[1].counts[0].store(1, kRelaxed);
    w.watch_word(0);
    bytes($) = kA.lo;
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 1) {
      RL_ASSERT(bytes($) == kA.lo);
      give_back(a, 0);
    } else if (claim_evictable(a, 0)) {
      end_life(a, 0);
      bytes($) = kB.lo;
    }
  }
};

// The same through FREE: the last holder closes, another process claims and writes.
struct CloseClaim : Suite<CloseClaim, 2> {
  Bytes bytes;
  void before() {
    w.begin();
    w.ready(0, kA);
    w.index[0].store(0, kRelaxed);
    w.hot[0].word.store(make_word(kFirst, kReadyLast, w.of[1].me), kRelaxed);
    w.of[1].counts[0].store(1, kRelaxed);
    w.free_map[0].store(1, kRelaxed);  // a hint too many: the claim is on the word
    w.watch_word(0);
    bytes($) = kA.lo;
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 1) {
      RL_ASSERT(bytes($) == kA.lo);
      give_back(a, 0);
    } else {
      std::uint32_t id;
      if (claim_free(a, 1, &id) == 1) bytes($) = kB.lo;
    }
  }
};

// Slices of two processes, published by one of them, read by a third.
struct Slices : Suite<Slices, 3> {
  Bytes slice[2];
  void before() {
    w.begin();
    w.filling(0, 0, kA, true, 2);
    w.cold[0].nparts.store(2, kRelaxed);
    w.watch_word(0);
    w.watch(w.cold[0].parts);
    slice[0]($) = 0;
    slice[1]($) = 0;
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    const kvshm_handle h{kFirst, 0, 0};
    if (p < 2) {
      RL_ASSERT(begin_part(a, h, p) == 0);
      slice[p]($) = kA.lo;
      arrive_part(a, h, p);
      if (publish(a, h) == 0) RL_ASSERT(slice[1 - p]($) == kA.lo);
    } else if (upgrade(a, h, false) == 0) {
      RL_ASSERT(slice[0]($) == kA.lo && slice[1]($) == kA.lo);
    }
  }
};

// (id, seq) of a pending fill: both are of one life, or the key is 0.
struct Pending : Suite<Pending, 2> {
  void before() {
    w.begin();
    w.filling(0, 0, kA, true);
    w.watch_word(0);
    w.watch_key(0);
    w.watch(w.hot[0].seq);
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 0) {
      give_back(a, 0);  // closes it; then the same block for another key
      std::uint32_t id;
      if (claim_free(a, 1, &id) != 1 || id != 0) return;
      enter(a, 0);
      w.hot[0].store_key(kB);
    } else {
      const Found f = lookup_at(a, kA, false, 0);
      if (f.how == Take::kPending) RL_ASSERT(f.seq == kFirst);
    }
  }
};

// Join by an old handle: the member is of the life that the handle names.
struct Join : Suite<Join, 2> {
  std::uint64_t life = kFirst;  // the truth, seen by both
  void before() {
    w.begin();
    w.filling(0, 0, kA, true);
    w.watch_word(0);
    w.watch(w.hot[0].seq);
  }
  void thread(unsigned p) {
    Arena& a = w.of[p];
    if (p == 0) {
      give_back(a, 0);
      std::uint32_t id;
      if (claim_free(a, 1, &id) != 1 || id != 0) return;
      life = kFirst + 1;
      enter(a, id);
    } else if (join_fill(a, 0, kFirst) == 0) {
      RL_ASSERT(life == kFirst);
    }
  }
};

// Two inserters of one key: one entry.
struct Insert2 : Suite<Insert2, 2> {
  void before() {
    w.begin();
    w.filling(0, 0, {}, false);
    w.filling(1, 1, {}, false);
    w.watch_key(0);
    w.watch_key(1);
    w.watch(w.index[0]);
    w.watch(w.index[1]);
  }
  void thread(unsigned p) {
    std::uint32_t other;
    w.hot[p].store_key(kA);
    insert_if_absent(w.of[p], p, kA, &other);
  }
  void after() {
    RL_ASSERT((w.entry(0) != 0) + (w.entry(1) != 0) == 1);
    RL_ASSERT(!((w.entry(0) | w.entry(1)) & entry::kTentative));
    forget_all();
  }
};

// A member may publish only what is committed: READY never has a tentative entry.
struct Announced : Suite<Announced, 2> {
  void before() {
    w.begin();
    w.filling(0, 0, kA, false, 2);
    w.cold[0].parts.store(std::uint64_t{1} << 32 | 1, kRelaxed);
    w.watch_word(0);
    w.watch(w.index[0]);
    w.watch(w.hot[0].flags);
  }
  void thread(unsigned p) {
    if (p == 0)
      announce(w.of[0], 0, kA);
    else if (publish(w.of[1], {kFirst, 0, 0}) == 0)
      RL_ASSERT(w.entry(0) == entry::make(kA.lo, 0));
  }
};

// Two threads of process 0 share its hold; process 2 fills, then evicts and writes anew.
struct Counts : Suite<Counts, 3> {
  Bytes bytes;
  void before() {
    w.begin();
    w.filling(2, 0, kA, true);
    w.watch_word(0);
    w.watch(w.of[0].counts[0]);
    bytes($) = 0;
  }
  void thread(unsigned t) {
    Arena& a = w.of[t == 2 ? 2 : 0];
    if (t == 2) {
      bytes($) = kA.lo;
      publish_fill(a, 0, false);
      give_back(a, 0);
      for (int i = 0; i < kLooks; i++) {
        if (!claim_evictable(a, 0)) continue;
        bytes($) = kB.lo;
        return;
      }
    }
    for (int i = 0; t < 2 && i < kLooks; i++) {
      if (take_ready(a, 0, false) != Take::kHeld) continue;
      RL_ASSERT(bytes($) == kA.lo);
      give_back(a, 0);
    }
  }
};

// The waiter of a fill, without a time-out: it sees READY or is woken.
template <bool Publishes>
struct WaitFill : Suite<WaitFill<Publishes>, 2> {
  void before() {
    auto& w = world();
    w.begin();
    w.filling(0, 0, kA, true);
    w.watch_word(0);
    w.watch(w.hot[0].fut);
    w.watch(w.hot[0].seq);
  }
  void thread(unsigned p) {
    auto& w = world();
    if (p == 1)
      wait_fill(w.of[1], {kFirst, 0, 0}, 1000);
    else if (Publishes)
      publish_fill(w.of[0], 0, false);
    else
      give_back(w.of[0], 0);  // closed: the waiter sees another life
  }
};

// The waiter for space: it finds the block or is woken.
enum class Frees { kRelease, kClose, kGiveBack };
template <Frees kHow>
struct WaitSpace : Suite<WaitSpace<kHow>, 2> {
  void before() {
    auto& w = world();
    w.begin();
    w.free_map[0].store(0, kRelaxed);
    w.of[0].counts[0].store(1, kRelaxed);
    const State s = kHow == Frees::kRelease ? kReady
                    : kHow == Frees::kClose ? kReadyLast
                                            : kEvicting;
    w.hot[0].word.store(make_word(kFirst, s, w.of[0].me), kRelaxed);
    w.hot[1].word.store(make_word(kFirst, kReady, w.of[2].me), kRelaxed);
    w.watch_word(0);
    w.watch(w.of[0].sb->space);
    if (kHow == Frees::kClose) w.watch(w.free_map[0]);
  }
  void thread(unsigned p) {
    auto& w = world();
    if (p == 0 && kHow == Frees::kGiveBack) {
      give_back_victim(w.of[0], 0);
      wake_space(w.of[0]);
    } else if (p == 0) {
      give_back(w.of[0], 0);
    } else {
      FillSpec spec;
      spec.timeout_ms = 1000;
      kvshm_handle out;
      RL_ASSERT(allocate(w.of[1], 1, nullptr, spec, &out, nullptr, nullptr) == 0);
    }
  }
};

// A bit in the free map has its summary bit, whoever looked meanwhile.
struct Summary : Suite<Summary, 2> {
  void before() {
    w.begin();
    w.free_map[0].store(0, kRelaxed);
    w.hot[0].word.store(make_word(kFirst, kEvicting, w.of[0].me), kRelaxed);
    w.watch(w.free_map[0]);
    w.watch(w.summary[0]);
  }
  void thread(unsigned p) {
    std::uint32_t id;
    if (p == 0)
      mark_free(w.of[0], 0);
    else
      claim_free(w.of[1], 1, &id);  // the word is not FREE: nothing is claimed
  }
  void after() {
    RL_ASSERT(!w.free_map[0].load(kRelaxed) || w.summary[0].load(kRelaxed) == 1);
    forget_all();
  }
};

// NO_CACHE asked for while another member publishes: it is in the word afterwards.
struct NoCache : Suite<NoCache, 2> {
  bool asked = false;
  void before() {
    w.begin();
    w.filling(0, 0, kA, true, 2);
    w.watch_word(0);
    w.watch(w.hot[0].flags);
  }
  void thread(unsigned p) {
    if (p == 0) {
      const bool wanted = w.hot[0].flags.load(std::memory_order_acquire) & kLastWanted;
      publish_fill(w.of[0], 0, wanted);
    } else {
      asked = set_no_cache(w.of[1], {kFirst, 0, 0}, true) == 0;
    }
  }
  void after() {
    RL_ASSERT(!asked || state(w.hot[0].word.load(kRelaxed)) == kReadyLast);
    forget_all();
  }
};

// Relacy writes while its own allocator is in force: no stream of ours may allocate there.
struct Sink : std::streambuf {
  static constexpr std::size_t kRoom = 1 << 20;
  std::unique_ptr<char[]> text{new char[kRoom]};
  Sink() { setp(text.get(), text.get() + kRoom); }
  std::size_t written() const { return std::size_t(pptr() - pbase()); }
  int overflow(int c) override { return c; }  // the rest is lost
};

template <class S>
Outcome run(std::uint64_t runs, std::uint64_t seed, bool trail) {
  Sink sink, dropped;
  std::ostream out(&sink), progress(&dropped);
  rl::test_params p;
  p.iteration_count = runs;
  p.search_type = rl::sched_random;
  p.execution_depth_limit = 20000;
  p.output_stream = &out;
  p.progress_stream = &progress;
  p.initial_state = std::to_string(seed);
  const bool passed = rl::simulate<S>(p);
  if (trail && !passed) std::fwrite(sink.text.get(), 1, sink.written(), stderr);
  return {passed, p.stop_iteration + 1, passed ? "" : rl::test_result_str(p.test_result)};
}

}  // namespace

std::vector<Scenario> scenarios() {
  return {
      {"publish", run<Publish>, {"M:fill.13", "M:fill.14"}},
      {"register", run<Register>, {"M:fill.13 & M:index.18 & M:index.13", "M:fill.14 & M:index.1"}},
      {"reuse", run<Reuse>, {"M:fill.14", "M:fill.15", "M:fill.2"}},
      {"release", run<Release>, {"M:fill.15", "M:fill.2 & evict/choose.cpp: word_t look("}},
      {"close and claim", run<CloseClaim>, {"M:fill.1", "M:fill.16 & M:fill.18"}},
      {"slices", run<Slices>, {"M:fill.11", "M:fill.12", "M:fill.13", "M:fill.14"}},
      {"pending", run<Pending>, {"M:fill.17", "M:pending.4"}},
      {"join", run<Join>, {"M:fill.6"}},
      {"insert", run<Insert2>, {"M:index.13", "M:index.14"}},
      {"announced",
       run<Announced>,
       {"M:tentative.3",
        "blocks/registration.cpp: hot[h.id].flags.load( & "
        "blocks/counts.cpp: if (!(h.flags.load("}},
      {"counts",
       run<Counts>,
       {"blocks/counts.cpp: c.store(value,",
        "M:counts.10 & blocks/counts.cpp: v = c.load(std::memory_order_acquire);", "M:counts.14"}},
      {"wait for a fill, published",
       run<WaitFill<true>>,
       {"M:wait.1", "M:wait.6", "M:fill.13", "blocks/waiting.cpp: h.word.load("}},
      {"wait for a fill, closed", run<WaitFill<false>>, {"M:wait.1", "M:wait.6", "M:fill.18"}},
      {"wait for space, released",
       run<WaitSpace<Frees::kRelease>>,
       {"M:wait.1", "M:wait.6", "M:fill.15", "evict/choose.cpp: word_t look("}},
      {"wait for space, closed",
       run<WaitSpace<Frees::kClose>>,
       {"M:wait.1", "M:wait.6", "blocks/close.cpp: a.free_map[id / 64].fetch_or(",
        "blocks/close.cpp: if (a.free_map[i].load("}},
      {"wait for space, given back", run<WaitSpace<Frees::kGiveBack>>, {"M:aon.3"}},
      {"summary",
       run<Summary>,
       {"M:freemap.6", "blocks/close.cpp: a.free_map[id / 64].fetch_or(",
        "blocks/close.cpp: if (s.load(", "blocks/close.cpp: if (a.free_map[i].load("}},
      {"no-cache",
       run<NoCache>,
       {"M:fill.13", "blocks/counts.cpp: if (!(h.flags.load(",
        "blocks/counts.cpp: const word_t w = h.word.load(std::memory_order_seq_cst)",
        "blocks/holds.cpp: h.flags.fetch_or(kLastWanted, "}},
  };
}

}  // namespace weak
