// SPDX-License-Identifier: Apache-2.0
// disk: blocks down to a tier's file and up from it, as engines do it: by the public API, checksums
// included, as many at once as the tier makes of it. Each round says bytes, time and processor time of all threads.
#include <sys/resource.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "arena.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kLimitMs = 20000;

double cpu_seconds() {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         double(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

struct Done {
  std::uint64_t bytes = 0, ns = 0;
  double cpu = 0;
  std::vector<double> took;
};

class Measured {  // one round
 public:
  explicit Measured(std::uint64_t ms) : end_(start_ + ms * 1000000) {}
  bool over() const { return now_ns() >= end_; }
  Done done(std::uint64_t bytes) const {
    return {bytes, now_ns() - start_, cpu_seconds() - cpu_, {}};
  }

 private:
  const std::uint64_t start_ = now_ns(), end_;
  const double cpu_ = cpu_seconds();
};

class Drive {
 public:
  explicit Drive(const Args& args) : name_(args.text("name")), path_(args.text("file")) {
    kvshm_options o = options_of(args);
    o.flags = KVSHM_NO_HELPER;
    o.block_bytes = args.number("block"), o.blocks = args.number("memory") / o.block_bytes;
    must(kvshm_create(&a_, name_.c_str(), &o), "create");
    const char* paths[] = {path_.c_str()};
    kvshm_tier_options t = KVSHM_TIER_OPTIONS_INIT;
    t.paths = paths, t.npaths = 1, t.bytes = args.number("bytes");
    t.direct = KVSHM_REQUIRE, t.write = KVSHM_TIER_WRITE_OFF;
    const std::uint64_t begun = now_ns();
    must(kvshm_tier_open(a_, &t), "tier");
    for (tier_ = about(); tier_.state != KVSHM_TIER_OK; tier_ = about()) {
      if (tier_.state == KVSHM_TIER_FAILED || now_ns() - begun > 60000000000u)
        die("a tier that does not serve: %s", tier_.why);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    rebuild_ms_ = double(now_ns() - begun) / 1e6;
    block_ = o.block_bytes, blocks_ = o.blocks;
    if (args.number("fill", 1)) fill(args.number("fill_ms", kHour));
  }
  ~Drive() {
    kvshm_close(a_, kLimitMs);
    kvshm_remove(name_.c_str(), nullptr, 1);
    kvshm_remove(tier_.image, nullptr, 1);
  }
  void facts(Line& out) {
    tier_ = about();
    out.add("engine", kvshm_tier_engine_name(tier_.engine))
        .add("slots", tier_.slots)
        .add("slots_ready", tier_.slots_ready)
        .add("registered", std::uint64_t(tier_.registered))
        .add("rebuild_ms", rebuild_ms_);
  }

  // Two prefixes of so many blocks at any time: as many transfers in flight as the tier makes of
  // them. What memory still had does not count.
  Done read(std::uint32_t run, std::uint64_t ms) {
    Load loads[2];
    std::uint64_t bytes = 0;
    unsigned flying = 0, misses = 0;
    const Measured round(ms);
    auto begin = [&](Load& l) {
      while (!round.over()) {
        l.drive = this, l.keys.clear();
        for (std::uint32_t i = 0; i < run; i++) l.keys.push_back(next_key());
        const std::int64_t n =
            must(kvshm_match_load(a_, l.keys[0].api(), run, 0, 0, &l.load, nullptr), "match_load");
        if (n) {
          flying++;
          must(kvshm_load_notify(l.load, Load::landed, &l), "notify");
          return;
        }
        if (++misses > 100000) die("%u look-ups without a block on disk", misses);
      }
    };
    for (Load& l : loads) begin(l);
    while (flying) {
      Load* l;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (!changed_.wait_for(lock, std::chrono::milliseconds(kLimitMs),
                               [&] { return !landed_.empty(); }))
          die("a load has not landed in %u ms", kLimitMs);
        l = landed_.front();
        landed_.pop_front();
      }
      std::vector<std::uint8_t> status(run, KVSHM_LD_NONE);
      kvshm_load_status(l->load, status.data(), nullptr);
      kvshm_load_free(l->load);
      flying--;
      for (const std::uint8_t s : status) {
        if (s == KVSHM_LD_FAILED) die("a load failed");
        if (s == KVSHM_LD_LOADED) bytes += block_;
      }
      begin(*l);
    }
    return round.done(bytes);
  }

  // One at a time, in the caller's thread.
  Done one(std::uint64_t ms) {
    std::vector<double> took;
    const Measured round(ms);
    while (!round.over()) {
      const Key key = next_key();
      const std::uint64_t begun = now_ns();
      kvshm_load* load = nullptr;
      if (!must(kvshm_match_load(a_, key.api(), 1, 0, 0, &load, nullptr), "match_load")) continue;
      must(kvshm_load_wait(load, kLimitMs), "wait");
      const double ns = double(now_ns() - begun);
      std::uint8_t status = KVSHM_LD_NONE;
      kvshm_load_status(load, &status, nullptr);
      if (status == KVSHM_LD_LOADED) took.push_back(ns);
      kvshm_load_free(load);
    }
    Done d = round.done(took.size() * block_);
    d.took = std::move(took);
    return d;
  }

  // New blocks, as many queued as keep the tier at its depth.
  Done write(std::uint64_t ms, std::uint64_t most) {
    const Measured round(ms);
    const std::uint64_t before = stored();
    std::uint64_t offered = 0;
    while (!round.over() && offered < most) {
      const std::uint64_t queued = offered - (stored() - before);
      if (queued >= kQueued) {
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
        continue;
      }
      for (std::uint64_t i = queued; i < kQueued && offered < most; i++, offered++) offer();
    }
    must(kvshm_tier_drain(a_, kLimitMs), "drain");
    while (!held_.empty()) drop();
    if (stored() - before != offered)
      die("%llu of %llu blocks were stored", (unsigned long long)(stored() - before),
          (unsigned long long)offered);
    return round.done(offered * block_);
  }

  Done hash(std::uint64_t ms) {  // the checksum alone, over memory that no cache holds
    const Measured round(ms);
    std::uint64_t bytes = 0, sum = 0, at = 0;
    do {
      const void* data = kvshm_block_data(a_, std::uint32_t(at++ % blocks_));
      sum ^= XXH3_128bits(data, block_).low64;
      bytes += block_;
    } while (!round.over());
    if (sum == 1) die("a sum that cannot be");  // keeps it from being left out
    return round.done(bytes);
  }

 private:
  static constexpr std::uint64_t kQueued = 64, kHour = 3600000;

  kvshm_tier about() {
    kvshm_tier t = KVSHM_TIER_INIT;
    must(kvshm_get_tier(a_, &t), "tier");
    return t;
  }
  std::uint64_t stored() {
    kvshm_stats s;
    s.size = sizeof s;
    must(kvshm_get_own_stats(a_, &s), "stats");
    return s.tier_stored_total;
  }
  void offer() {
    const Key key = make_keys(1, newest_++, 1)[0];
    kvshm_handle h, out;
    std::uint8_t status = 0;
    must(kvshm_allocate(a_, 1, key.api(), nullptr, &h, &status, nullptr), "allocate");
    must(kvshm_register(a_, &h, 1, key.api(), KVSHM_ALLOW, &out, &status), "register");
    if (must(kvshm_tier_store(a_, &out, 1), "store") != 1) die("a block was not queued");
    // Held until it is surely written: what is evicted before its turn is not.
    held_.push_back(out);
    if (held_.size() > kQueued + 32) drop();
  }
  void drop() {
    must(kvshm_drop(a_, &held_.front(), 1), "drop");
    held_.pop_front();
  }
  // Every slot once, or as many as there is time for, with contents of its own; then they are read
  // in another order, again and again.
  void fill(std::uint64_t ms) {
    for (std::uint64_t i = 0; i < blocks_; i++) {
      auto* p = static_cast<std::uint8_t*>(kvshm_block_data(a_, std::uint32_t(i)));
      for (std::uint64_t at = 0; at < block_; at += sizeof(Key)) make_key(i + 2, at, p + at);
    }
    write(ms, tier_.slots);
    order_ = shuffled(newest_, 3);
  }
  Key next_key() {
    if (order_.empty()) die("nothing was stored");
    return make_keys(1, order_[at_++ % order_.size()], 1)[0];
  }

  struct Load {
    kvshm_load* load = nullptr;
    std::vector<Key> keys;
    Drive* drive = nullptr;
    static void landed(void* user) {
      auto* one = static_cast<Load*>(user);
      {
        std::lock_guard<std::mutex> lock(one->drive->mutex_);
        one->drive->landed_.push_back(one);
      }
      one->drive->changed_.notify_one();
    }
  };

  std::string name_, path_;
  kvshm_arena* a_ = nullptr;
  kvshm_tier tier_ = KVSHM_TIER_INIT;
  std::uint64_t block_ = 0, blocks_ = 0, newest_ = 0, at_ = 0;
  double rebuild_ms_ = 0;
  std::vector<std::uint32_t> order_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Load*> landed_;
  std::deque<kvshm_handle> held_;
};

}  // namespace

int disk(const Args& args) {
  Drive drive(args);
  const auto run = unsigned(args.number("run", 16));
  Line facts;
  drive.facts(facts);
  return serve(facts, [&](const Order& order, Line& out) {
    Done d;
    if (order.word == "read") d = drive.read(run, order.number);
    if (order.word == "one") d = drive.one(order.number);
    if (order.word == "write") d = drive.write(order.number, ~std::uint64_t{0});
    if (order.word == "hash") d = drive.hash(order.number);
    if (!d.bytes) die("nothing done in %s", order.word.c_str());
    out.add("gb_per_second", double(d.bytes) / double(d.ns));
    out.add("cpu_ns_per_kib", d.cpu * 1e9 * 1024 / double(d.bytes));
    if (!d.took.empty())
      out.add("p50_us", quantile(d.took, 0.5) / 1e3).add("p99_us", quantile(d.took, 0.99) / 1e3);
  });
}

}  // namespace bench
