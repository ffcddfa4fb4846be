// SPDX-License-Identifier: Apache-2.0
// SIGKILL with hundreds of reads and writes of a tier in flight, on a slow disk, while a survivor
// takes every block and slot that it can get: nothing changes under it. Without the registered device
// byte it does: the test can see it.
#include "device/guarded_ring.hpp"
#include "disk_support.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

constexpr std::uint64_t kBytes = 65536, kBlocks = 480, kSlots = 600;
constexpr unsigned kReaders = 8, kReads = 32, kWriters = 6, kWrites = 24;
constexpr std::uint64_t kSlow = 5 << 20;  // 3 s of transfers

keys_t read_keys(unsigned reader) { return keys_of(1 + reader * std::uint64_t{kReads}, kReads); }

unsigned in_flight(const std::vector<kvshm_arena*>& all) {
  unsigned n = 0;
  for (kvshm_arena* a : all) n += tier_of(a).in_flight;
  return n;
}

// All attachments are one process's: each has a ring, or a pool, of its own.
int move_until_killed(const std::string& name, const std::string& path, const TierSpec& spec,
                      Wire& wire) {
  std::vector<kvshm_arena*> readers(kReaders), writers(kWriters), all;
  for (auto* group : {&readers, &writers})
    for (kvshm_arena*& a : *group) {
      a = attach(name);
      CHILD_CHECK(a && open_tier(a, path, spec) == 0 && await_tier(a));
      all.push_back(a);
    }
  wire.tell();
  CHILD_CHECK(wire.listen());
  for (unsigned i = 0; i < kReaders; i++) {
    kvshm_load* load = nullptr;
    CHILD_CHECK(kvshm_match_load(readers[i], raw(read_keys(i)), kReads, 0, 0, &load, nullptr) ==
                kReads);
  }
  for (unsigned i = 0; i < kWriters; i++) cache_chain(writers[i], keys_of(5000 + 100 * i, kWrites));
  std::uint32_t most = 0;
  for (const std::int64_t end = now_ms() + 600; now_ms() < end; usleep(5000))
    most = std::max(most, in_flight(all));
  wire.tell();
  const std::uint32_t said[] = {most, in_flight(all)};
  wire.send(said, sizeof said);
  for (;;) pause();
}

struct Seen {
  std::uint32_t in_flight = 0;
  std::size_t taken = 0, taken_before = 0, changed = 0;  // blocks of the survivor
  std::uint64_t damaged = 0, right = 0;                  // slots, when all is read
};

void play(std::uint32_t engine, Seen* seen) {
  TierFile file("kill");
  Pool pool({kBlocks, kBytes});
  TierSpec spec;
  spec.engine = engine;
  spec.bytes = kSlots * kBytes + (1 << 20);
  spec.deadline_ms = 20000;
  kvshm_arena* first = pool.another();
  const int rc = open_tier(first, file.path, spec);
  if (rc == -KVSHM_EUNSUPPORTED) GTEST_SKIP() << kvshm_last_error();
  ASSERT_EQ(rc, 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(first));
  if (!tier_of(first).direct) GTEST_SKIP() << "no O_DIRECT: " << tier_of(first).why;
  for (unsigned i = 0; i < kReaders; i++) cache_chain(first, read_keys(i));
  ASSERT_EQ(kvshm_tier_drain(first, 20000), 0);
  ASSERT_EQ(kvshm_close(first, 10000), 0);
  TierSpec survivor = spec;
  survivor.mover = KVSHM_OFF;  // the process that is killed moves
  ASSERT_EQ(open_tier(pool.a, file.path, survivor), 0) << kvshm_last_error();
  ASSERT_EQ(kvshm_clear(pool.a), std::int64_t{kReaders} * kReads);
  kvshm::File disk(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  SlowDisk slow(disk.get(), kSlow, kSlow);
  if (!slow.works()) GTEST_SKIP() << "the disk cannot be made slow: " << slow.why_not();

  Child process([&](Wire& w) { return move_until_killed(pool.name, file.path, spec, w); });
  ASSERT_TRUE(process.listen());
  slow.take(process.pid());
  process.tell();
  ASSERT_TRUE(process.listen());
  std::uint32_t said[2];
  ASSERT_TRUE(process.wire().receive(said, sizeof said));
  seen->in_flight = said[1];
  ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);

  // Each block that is to be had is written, stored and kept.
  keys_t keys;
  handles_t mine;
  auto take_all = [&] {
    for (;;) {
      const block_key key = key_of(100000 + keys.size());
      kvshm_handle h;
      if (kvshm_allocate(pool.a, 1, raw(key), nullptr, &h, nullptr, nullptr)) return;
      write_payload(pool.a, h.id, key);
      ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr), 1);
      keys.push_back(key);
      mine.push_back(h);
    }
  };
  auto changed = [&] {
    std::size_t n = 0;
    for (std::size_t i = 0; i < mine.size(); i++) n += !payload_right(pool.a, mine[i].id, keys[i]);
    return n;
  };
  bool landed = false;
  for (const std::int64_t end = now_ms() + 20000; now_ms() < end && mine.size() < kBlocks;) {
    ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0);
    take_all();
    seen->changed = std::max(seen->changed, changed());
    if (!seen->taken_before) seen->taken_before = mine.size();
    usleep(100000);
  }
  process.kill();
  for (const std::int64_t end = now_ms() + 20000; !landed && now_ms() < end; usleep(20000)) {
    landed = true;
    for (unsigned s = 1; s <= kReaders + kWriters; s++)
      landed &= !byte_is_held(pool.name, kvshm::life_byte(s)) &&
                !byte_is_held(pool.name, kvshm::device_byte(s));
  }
  EXPECT_TRUE(landed);
  kvshm_arena* next = pool.another();  // moves what the dead one had, and what came since
  ASSERT_EQ(open_tier(next, file.path, spec), 0) << kvshm_last_error();
  if (kvshm::unguarded()) usleep(4000000);  // nothing tells when the last one has
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  seen->taken = mine.size();
  seen->changed = std::max(seen->changed, changed());
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(broken_image(pool.a), "");
  ASSERT_EQ(kvshm_drop(pool.a, mine.data(), std::uint32_t(mine.size())), 0);
  ASSERT_GE(kvshm_clear(pool.a), 0);
  for (const block_key& key : keys) seen->right += load_chain(pool.a, {key}).right;
  for (unsigned i = 0; i < kReaders; i++) load_chain(pool.a, read_keys(i));
  seen->damaged = stats(pool.a).tier_damaged_total;
  std::printf(
      "in flight %u; blocks taken %zu at once, %zu later, changed %zu; slots right %llu, "
      "damaged %llu\n",
      seen->in_flight, seen->taken_before, seen->taken, seen->changed,
      (unsigned long long)seen->right, (unsigned long long)seen->damaged);
}

class TierKill : public testing::TestWithParam<std::uint32_t> {};

TEST_P(TierKill, NothingChangesUnderASurvivor) {
  Seen seen;
  play(GetParam(), &seen);
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_GE(seen.in_flight, 150u);
  EXPECT_LT(seen.taken_before, kBlocks) << "nothing was kept from the survivor";
  EXPECT_EQ(seen.taken, kBlocks) << "not all came back";
  EXPECT_EQ(seen.changed, 0u);
  EXPECT_EQ(seen.damaged, 0u);
  EXPECT_GT(seen.right, kBlocks / 4);  // the tier is smaller than what was stored
}

INSTANTIATE_TEST_SUITE_P(Engines, TierKill, testing::Values(KVSHM_TIER_URING, KVSHM_TIER_THREADS),
                         [](const auto& i) {
                           return i.param == KVSHM_TIER_URING ? "Uring" : "Threads";
                         });

TEST(TierKill, WithoutTheDeviceByteItDoes) {
  Seen seen;
  kvshm::leave_unguarded = true;
  play(KVSHM_TIER_URING, &seen);
  kvshm::leave_unguarded = false;
  if (IsSkipped() || HasFatalFailure()) return;
  EXPECT_GT(seen.changed + seen.damaged, 0u);
}

}  // namespace
