// SPDX-License-Identifier: Apache-2.0
// engine: the tier's engine of transfers and its checksum, on a file of slots, kept at a depth; what
// fio is measured beside. Each round says bytes, seconds and processor time.
#include "tier/engine.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "../bench.hpp"
#include "capi/call.hpp"
#include "disk.hpp"
#include "tier/record.hpp"

namespace bench {
namespace {

using kvshm::tier::Landed;
using kvshm::tier::Transfer;

double cpu_seconds() {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return double(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         double(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

class Drive {
 public:
  explicit Drive(const Args& args)
      : block_(args.number("block")),
        slots_(args.number("bytes") / block_),
        blocks_(args.number("memory") / block_),
        checks_(slots_) {
    name_ = args.text("name");
    kvshm_options o = KVSHM_OPTIONS_INIT;
    o.flags = KVSHM_NO_HELPER;
    o.blocks = blocks_, o.block_bytes = block_;
    must(kvshm_create(&a_, name_.c_str(), &o), "create");
    std::vector<kvshm_handle> h(blocks_);
    must(kvshm_allocate(a_, std::uint32_t(blocks_), nullptr, nullptr, h.data(), nullptr, nullptr),
         "allocate");
    file_ = open(args.text("file").c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    if (file_ < 0) die("%s with O_DIRECT: %s", args.text("file").c_str(), std::strerror(errno));
    kvshm::Arena& a = *a_->impl;
    kvshm::tier::EngineOptions e = {};
    e.files = &file_, e.nfiles = 1, e.arenas[0] = &a, e.entries = kEntries;
    e.memory = a.data, e.memory_bytes = blocks_ * block_, e.block_bytes = block_;
    std::string why;
    must(kvshm::tier::open_engine(KVSHM_TIER_AUTO, e, &engine_, &why), "open_engine");
    while (engine_->idle()) {
    }
    for (std::uint64_t i = 0; i < blocks_; i++)
      for (std::uint64_t at = 0; at < block_; at += sizeof(Key))
        make_key(i + 1, at, reinterpret_cast<std::uint8_t*>(block(i)) + at);
    for (std::uint64_t s = 0; s < slots_; s++) queue_.push_back(std::uint32_t(s));
    run(Transfer::kWrite, 8, ~std::uint64_t{0}, slots_);
    queue_ = shuffled(slots_, 3);
  }
  ~Drive() {
    engine_.reset();
    kvshm_close(a_, 10000);
    kvshm_remove(name_.c_str(), nullptr, 1);
  }
  void facts(Line& out) const {
    out.add("engine", kvshm_engine_name(engine_->kind()))
        .add("registered", std::uint64_t(engine_->registered()))
        .add("slots", slots_);
  }
  // As a tier does: a block that has come is hashed and compared, one that goes is hashed before.
  struct Done {
    std::uint64_t bytes = 0, ns = 0;
    double cpu = 0;
    std::vector<double> took;
  };
  Done run(Transfer::Kind kind, unsigned depth, std::uint64_t ms, std::uint64_t most) {
    Done d;
    struct Place {
      std::uint32_t slot, block;
      std::uint64_t begun;
    } places[kEntries];
    const double cpu = cpu_seconds();
    const std::uint64_t start = now_ns(), end = ms == ~std::uint64_t{0} ? ms : start + ms * 1000000;
    std::uint64_t begun = 0;
    auto begin = [&](unsigned i) {
      if (begun == most || now_ns() >= end) return;
      Place& p = places[i];
      p = {queue_[at_++ % queue_.size()], std::uint32_t(next_++ % blocks_), now_ns()};
      Transfer t;
      t.kind = kind, t.urgent = kind == Transfer::kRead, t.bytes = std::uint32_t(block_);
      t.data = block(p.block), t.offset = p.slot * block_, t.token = i;
      if (kind == Transfer::kWrite)
        kvshm::tier::payload_check(t.data, block_, checks_[p.slot].value);
      must(engine_->start(t), "start");
      begun++;
    };
    for (unsigned i = 0; i < depth; i++) begin(i);
    while (engine_->in_flight()) {
      Landed landed[kEntries];
      const auto n = unsigned(must(engine_->wait(landed, kEntries, 1000), "wait"));
      for (unsigned i = 0; i < n; i++) {
        const Place p = places[landed[i].token];
        if (landed[i].result != std::int32_t(block_))
          die("slot %u: %d of %llu bytes", p.slot, landed[i].result, (unsigned long long)block_);
        begin(unsigned(landed[i].token));  // the drive goes on while this one is hashed
        if (kind == Transfer::kRead) compare(p.slot, p.block);
        d.bytes += block_;
        d.took.push_back(double(now_ns() - p.begun));
      }
      if (!begun) break;
    }
    d.ns = now_ns() - start;
    d.cpu = cpu_seconds() - cpu;
    return d;
  }
  Done hash(std::uint64_t ms) {  // alone, over memory that no cache holds
    Done d;
    const double cpu = cpu_seconds();
    const std::uint64_t start = now_ns(), end = start + ms * 1000000;
    std::uint64_t sum = 0, found[2];
    do {
      kvshm::tier::payload_check(block(next_++ % blocks_), block_, found);
      sum ^= found[0];
      d.bytes += block_;
    } while (now_ns() < end);
    d.ns = now_ns() - start, d.cpu = cpu_seconds() - cpu;
    if (sum == 1) die("a sum that cannot be");  // keeps it from being left out
    return d;
  }

 private:
  static constexpr unsigned kEntries = 32;
  struct Check {
    std::uint64_t value[2];
  };
  static const char* kvshm_engine_name(std::uint32_t kind) {
    return kind == KVSHM_TIER_URING ? "io_uring" : "threads";
  }
  void* block(std::uint64_t i) const { return kvshm_block_data(a_, std::uint32_t(i)); }
  void compare(std::uint32_t slot, std::uint32_t at) const {
    std::uint64_t found[2];
    kvshm::tier::payload_check(block(at), block_, found);
    if (std::memcmp(found, checks_[slot].value, sizeof found)) die("slot %u: wrong bytes", slot);
  }

  const std::uint64_t block_, slots_, blocks_;
  std::vector<Check> checks_;
  std::vector<std::uint32_t> queue_;
  std::uint64_t at_ = 0, next_ = 0;
  std::string name_;
  kvshm_arena* a_ = nullptr;
  int file_ = -1;
  std::unique_ptr<kvshm::tier::Engine> engine_;
};

}  // namespace

int engine(const Args& args) {
  use_cpu(args);
  Drive drive(args);
  const auto reads = unsigned(args.number("read_depth", 4));
  const auto writes = unsigned(args.number("write_depth", 8));
  Line facts;
  drive.facts(facts);
  return serve(facts, [&](const Order& order, Line& out) {
    constexpr std::uint64_t kAny = ~std::uint64_t{0};
    Drive::Done d;
    if (order.word == "read") d = drive.run(Transfer::kRead, reads, order.number, kAny);
    if (order.word == "write") d = drive.run(Transfer::kWrite, writes, order.number, kAny);
    if (order.word == "one") d = drive.run(Transfer::kRead, 1, order.number, kAny);
    if (order.word == "hash") d = drive.hash(order.number);
    if (!d.bytes) die("nothing done in %s", order.word.c_str());
    out.add("gb_per_second", double(d.bytes) / double(d.ns));
    out.add("cpu_ns_per_kib", d.cpu * 1e9 * 1024 / double(d.bytes));
    if (order.word == "one")
      out.add("p50_us", quantile(d.took, 0.5) / 1e3).add("p99_us", quantile(d.took, 0.99) / 1e3);
  });
}

}  // namespace bench
