// SPDX-License-Identifier: Apache-2.0
// The two engines of a tier: what they move, what they report, and that nothing is written into
// memory that they have given up.
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "engine_support.hpp"

using namespace kvshm_test;

namespace {

constexpr std::uint32_t kBoth[] = {KVSHM_TIER_URING, KVSHM_TIER_THREADS};

class TierEngine : public testing::TestWithParam<std::uint32_t> {
 protected:
  std::unique_ptr<Engine> open_with(const std::vector<int>& files, unsigned entries = 32) {
    Opened r = open_it(GetParam(), pool.a, files, entries);
    why = r.why;
    EXPECT_TRUE(r.rc == 0 || r.rc == -KVSHM_EUNSUPPORTED) << r.rc << " " << kvshm_last_error();
    EXPECT_TRUE(!r.engine || r.engine->kind() == GetParam());
    return std::move(r.engine);
  }
  Pool pool{{.blocks = 4, .block_bytes = 4096}};
  std::string why;
};

#define OPEN(name, ...)               \
  auto name = open_with(__VA_ARGS__); \
  if (!name) GTEST_SKIP() << why

}  // namespace

TEST_P(TierEngine, WritesAndReadsBack) {
  File f = scratch(O_DIRECT);
  if (!f) GTEST_SKIP() << "O_DIRECT: " << std::strerror(errno);
  OPEN(e, {f.get()});
  EXPECT_EQ(why, "");
  Memory from(2 * kMiB), to(2 * kMiB);
  std::uint64_t at = 0;
  for (std::uint32_t n = 4096; n <= 2 * kMiB; at += n, n *= 2) {
    fill_random(from.at, n, n);
    to.blank();
    EXPECT_EQ(one(*e, {.kind = Transfer::kWrite, .bytes = n, .data = from.at, .offset = at}),
              int(n));
    EXPECT_EQ(one(*e, {.kind = Transfer::kSync}), 0);
    EXPECT_EQ(one(*e, {.bytes = n, .data = to.at, .offset = at}), int(n));
    EXPECT_EQ(std::memcmp(from.at, to.at, n), 0) << n;
  }
  EXPECT_EQ(e->abandon(), -1);  // nothing is under way
}

TEST_P(TierEngine, MovesMany) {
  constexpr unsigned kN = 300, kMost = 64 * 1024;
  File even = scratch(), odd = scratch();
  OPEN(e, {even.get(), odd.get()});
  Memory from(kN * kMost), to(kN * kMost);
  fill_random(from.at, from.bytes, 1);
  std::mt19937 random(2);
  std::vector<std::uint32_t> bytes(kN);
  for (auto& b : bytes) b = 1 + random() % kMost;
  for (const auto kind : {Transfer::kWrite, Transfer::kRead}) {
    unsigned next = 0, done = 0, refused = 0;
    const std::int64_t end = now_ms() + 30000;
    while (done < kN && now_ms() < end) {
      for (; next < kN; next++) {
        const std::uint64_t at = std::uint64_t{next} * kMost;
        auto* p = (kind == Transfer::kWrite ? from.at : to.at) + at;
        const int rc = e->start({.kind = kind,
                                 .urgent = next % 7 == 0,
                                 .file = next % 2,
                                 .bytes = bytes[next],
                                 .data = p,
                                 .offset = at,
                                 .token = next});
        if (rc) {
          EXPECT_EQ(rc, -EAGAIN);
          refused++;
          break;
        }
      }
      EXPECT_LE(e->in_flight(), 32u);
      Landed out[8];
      const int n = e->wait(out, 8, 1000);
      ASSERT_GE(n, 0);
      for (int i = 0; i < n; i++, done++)
        EXPECT_EQ(out[i].result, int(bytes[out[i].token])) << out[i].token;
    }
    EXPECT_EQ(done, kN);
    EXPECT_GT(refused, 0u);  // never more than asked for at once
  }
  for (unsigned i = 0; i < kN; i++) {
    const std::size_t at = std::size_t{i} * kMost;
    EXPECT_EQ(std::memcmp(from.at + at, to.at + at, bytes[i]), 0) << i;
    EXPECT_TRUE(bytes[i] == kMost || to.at[at + bytes[i]] == kBlank) << i;
  }
}

TEST_P(TierEngine, ReportsWhatWentWrong) {
  File f = scratch(), read_only(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)),
       broken(open("/proc/self/mem", O_RDONLY | O_CLOEXEC)), direct = scratch(O_DIRECT);
  ASSERT_EQ(ftruncate(f.get(), 5000), 0);
  OPEN(e, {f.get(), read_only.get(), broken.get(), direct ? direct.get() : f.get()});
  Memory m(8192);
  EXPECT_EQ(one(*e, {.bytes = 8192, .data = m.at}), 5000);
  EXPECT_EQ(m.at[4999], 0);
  EXPECT_EQ(m.at[5000], kBlank);
  EXPECT_EQ(one(*e, {.bytes = 8192, .data = m.at, .offset = 8192}), 0);
  EXPECT_EQ(one(*e, {.kind = Transfer::kWrite, .file = 1, .bytes = 1, .data = m.at}), -EBADF);
  EXPECT_EQ(one(*e, {.file = 2, .bytes = 64, .data = m.at, .offset = 4096}), -EIO);
  if (direct) {
    EXPECT_EQ(one(*e, {.kind = Transfer::kWrite, .file = 3, .bytes = 100, .data = m.at + 1}),
              -EINVAL);
  }
  EXPECT_EQ(one(*e, {.bytes = 64, .data = reinterpret_cast<void*>(64)}), -EFAULT);
  EXPECT_EQ(e->start({.file = 4, .bytes = 1, .data = m.at}), -EINVAL);
  EXPECT_EQ(one(*e, {.bytes = 1, .data = m.at}), 1);  // and goes on
}

// Somebody's closerange(), and another file under the number: it is never touched.
TEST_P(TierEngine, LeavesForeignFilesAlone) {
  File f = scratch(), other = scratch();
  OPEN(e, {f.get()});
  const int number = f.get();
  ASSERT_EQ(dup2(other.get(), number), number);
  Memory m(4096);
  const int rc = one(*e, {.kind = Transfer::kWrite, .bytes = 4096, .data = m.at});
  EXPECT_TRUE(rc == 4096 || rc == -EBADF) << rc;
  EXPECT_EQ(lseek(other.get(), 0, SEEK_END), 0);
}

TEST_P(TierEngine, WaitsWithinItsLimitAndWakesEarly) {
  File f = scratch();
  OPEN(e, {f.get()});
  Landed out[4];
  std::int64_t before = now_ms();
  EXPECT_EQ(e->wait(out, 4, 0), 0);
  EXPECT_LT(now_ms() - before, 1000);
  before = now_ms();
  EXPECT_EQ(e->wait(out, 4, 60), 0);
  EXPECT_GE(now_ms() - before, 55);

  for (int round = 0; round < 3; round++) {
    std::thread other([&] {
      usleep(50000);
      e->kick();
      e->kick();
    });
    before = now_ms();
    EXPECT_EQ(e->wait(out, 4, 20000), 0);
    EXPECT_LT(now_ms() - before, 10000);
    other.join();
    while (e->wait(out, 4, 0)) {
    }
    e->kick();  // before the wait: not lost
    before = now_ms();
    EXPECT_EQ(e->wait(out, 4, 20000), 0);
    EXPECT_LT(now_ms() - before, 10000);
    EXPECT_EQ(e->in_flight(), 0u);  // a kick is no transfer
  }
  // A kick never hides what has landed.
  Memory m(4096);
  ASSERT_EQ(e->start({.kind = Transfer::kWrite, .bytes = 4096, .data = m.at, .token = 5}), 0);
  e->kick();
  EXPECT_EQ(land(*e).at(5), 4096);
}

TEST_P(TierEngine, MovesBlocksWithRegisteredBuffers) {
  constexpr unsigned kBlocks = 80;  // more than one slice
  Pool large({.blocks = kBlocks, .block_bytes = kMiB});
  File f = scratch(O_DIRECT);
  if (!f) GTEST_SKIP() << "O_DIRECT: " << std::strerror(errno);
  auto& a = inside(large.a);
  const handles_t fills = fill_blocks(large.a, kBlocks);
  auto* base = static_cast<std::byte*>(kvshm_block_data(large.a, 0));
  const int files[] = {f.get()};
  std::unique_ptr<Engine> e;
  const int rc = open_engine(GetParam(),
                             {.files = files,
                              .nfiles = 1,
                              .arenas = {&a, nullptr},
                              .entries = 16,
                              .memory = base,
                              .memory_bytes = kBlocks * std::uint64_t{kMiB},
                              .block_bytes = kMiB},
                             &e, &why);
  if (rc == -KVSHM_EUNSUPPORTED) GTEST_SKIP() << why;
  ASSERT_EQ(rc, 0);
  EXPECT_FALSE(e->registered());
  unsigned slices = 0;
  do {
    // Blocks of slices that are registered and of those that are not.
    for (const unsigned b : {0u, 62u, 63u, 64u, kBlocks - 1}) {
      auto* p = reinterpret_cast<std::uint8_t*>(base) + std::size_t{b} * kMiB;
      fill_random(p, kMiB, b);
      const std::uint64_t at = std::uint64_t{b} * kMiB;
      ASSERT_EQ(one(*e, {.kind = Transfer::kWrite, .bytes = kMiB, .data = p, .offset = at}),
                int(kMiB));
      std::memset(p, kBlank, kMiB);
      ASSERT_EQ(one(*e, {.bytes = kMiB, .data = p, .offset = at}), int(kMiB));
      Memory right(kMiB);
      fill_random(right.at, kMiB, b);
      ASSERT_EQ(std::memcmp(p, right.at, kMiB), 0) << b;
    }
    slices++;
  } while (e->idle());
  if (GetParam() == KVSHM_TIER_URING && geteuid() == 0) {
    EXPECT_TRUE(e->registered());
    EXPECT_EQ(slices, 2u);
  }
  EXPECT_FALSE(e->idle());
  e.reset();
  EXPECT_EQ(abort_fills(large.a, fills), 0);
}

// What is given up with reads under way: the fence tells when the memory is ours again.
TEST_P(TierEngine, TheFenceOutlastsWhatIsUnderWay) {
  constexpr unsigned kReads = 8;
  Source source(kReads);
  File in = source.direct();
  if (!in) GTEST_SKIP() << "O_DIRECT: " << std::strerror(errno);
  SlowDisk slow(in.get(), 16 * kMiB);
  if (!slow.works()) GTEST_SKIP() << "the disk cannot be made slow: " << slow.why_not();
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a && wire.listen());
    Memory m(kReads * kMiB);
    Opened o = open_it(GetParam(), a, {in.get()});
    if (!o.engine) return kNone;
    for (unsigned i = 0; i < kReads; i++)
      CHILD_CHECK(o.engine->start({.bytes = kMiB, .data = m.at + i * kMiB, .offset = i * kMiB}) ==
                  0);
    Landed out[1];
    CHILD_CHECK(o.engine->wait(out, 0, 0) == 0);
    usleep(30000);  // the threads are in the kernel
    const std::int64_t before = now_ms();
    const int fence = o.engine->abandon();
    CHILD_CHECK(fence >= 0 && now_ms() - before < 200);
    CHILD_CHECK(o.engine->in_flight() == 0 && o.engine->wait(out, 1, 0) < 0);
    o.engine.reset();  // does not wait
    CHILD_CHECK(now_ms() - before < 400);
    CHILD_CHECK(!hangs_up(fence, 0));
    // Somebody forks: that child's copies of descriptors do not hold the fence.
    const pid_t other = fork();
    if (other == 0) {
      alarm(60);
      for (;;) pause();
    }
    CHILD_CHECK(hangs_up(fence, 20000));
    ::kill(other, SIGKILL);
    unsigned landed = 0;
#ifdef __SANITIZE_THREAD__
    return 0;  // it does not see that the fence orders what follows behind the threads' reads
#endif
    for (unsigned i = 0; i < kReads; i++)
      landed += !std::memcmp(m.at + i * kMiB, source.content(i * kMiB, kMiB).data(), kMiB);
    CHILD_CHECK(landed == kReads);
    m.blank();
    usleep(500000);
    CHILD_CHECK(m.is_blank());
    return 0;
  });
  slow.take(process.pid());
  process.tell();
  const int code = process.wait();
  if (code == kNone) GTEST_SKIP() << "no such engine here";
  EXPECT_EQ(code, 0);
}

// SIGKILL with reads under way into a block: the slot is nobody's before the last has landed. For a
// ring by its device byte, in both arenas; for threads by the life byte.
TEST_P(TierEngine, ASlotIsHeldUntilTheLastTransferHasLanded) {
  constexpr unsigned kReads = 16;
  Pool data({.blocks = kReads, .block_bytes = kMiB});
  Source source(kReads);
  File in = source.direct();
  if (!in) GTEST_SKIP() << "O_DIRECT: " << std::strerror(errno);
  SlowDisk slow(in.get(), 32 * kMiB);
  if (!slow.works()) GTEST_SKIP() << "the disk cannot be made slow: " << slow.why_not();
  handles_t fills(kReads);
  Child process([&](Wire& wire) {
    kvshm_arena *a = attach(data.name), *image = attach(pool.name);
    CHILD_CHECK(a && image && wire.listen());
    handles_t mine = fill_blocks(a, kReads);
    for (auto& h : mine) std::memset(kvshm_block_data(a, h.id), kBlank, kMiB);
    Opened o = open_it(GetParam(), a, {in.get()}, kReads, image);
    for (unsigned i = 0; o.engine && i < kReads; i++)
      CHILD_CHECK(
          o.engine->start(
              {.bytes = kMiB, .data = kvshm_block_data(a, mine[i].id), .offset = i * kMiB}) == 0);
    Landed out[1];
    if (o.engine) CHILD_CHECK(o.engine->wait(out, 0, 0) == 0);
    usleep(30000);
    wire.tell(o.engine ? 'o' : 'x');
    wire.send(mine.data(), mine.size() * sizeof mine[0]);
    wire.listen();
    return 0;
  });
  slow.take(process.pid());
  process.tell();
  const char said = process.listen();
  ASSERT_TRUE(said);
  if (said == 'x') GTEST_SKIP() << "no such engine here";
  ASSERT_TRUE(process.wire().receive(fills.data(), fills.size() * sizeof fills[0]));
  auto landed = [&] {
    unsigned n = 0;
    for (auto& h : fills) {
      const auto* p = static_cast<const std::uint8_t*>(kvshm_block_data(data.a, h.id));
      n += p[0] != kBlank && p[kMiB - 1] != kBlank;
    }
    return n;
  };
  ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);
  const off_t byte = GetParam() == KVSHM_TIER_URING ? kvshm::device_byte(1) : kvshm::life_byte(1);
  if (GetParam() == KVSHM_TIER_URING) {
    EXPECT_TRUE(becomes_free(data.name, kvshm::life_byte(1), 500));
  }
  const unsigned early = landed();
  ASSERT_LT(early, kReads) << "nothing was in flight";
  EXPECT_TRUE(byte_is_held(data.name, byte));
  EXPECT_TRUE(byte_is_held(pool.name, byte));
  const std::int64_t end = now_ms() + 20000;
  while (byte_is_held(data.name, byte) && now_ms() < end) {
  }
  EXPECT_EQ(landed(), kReads);
  EXPECT_TRUE(becomes_free(data.name, byte, 0) && becomes_free(pool.name, byte, 5000));
  process.kill();
  std::printf("landed: %u at death, %u when the slot was free\n", early, kReads);
}

TEST_P(TierEngine, IsNotInherited) {
  File f = scratch();
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    Opened o = open_it(GetParam(), a, {f.get()});
    if (!o.engine) return kNone;
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      Landed out[1];
      Memory m(4096);
      const bool refused = o.engine->start({.bytes = 1, .data = m.at}) == -KVSHM_EFORKED &&
                           o.engine->wait(out, 1, 1000) == -KVSHM_EFORKED && !o.engine->idle() &&
                           o.engine->abandon() == -1;
      o.engine->kick();
      o.engine.reset();  // touches nothing that is not here
      wire.tell(refused ? 'r' : 'x');
      for (;;) pause();
    }
    wire.listen();
    Memory m(4096);
    CHILD_CHECK(one(*o.engine, {.kind = Transfer::kWrite, .bytes = 4096, .data = m.at}) == 4096);
    o.engine.reset();
    // Its fence and its guards are gone although the child lives.
    const std::int64_t end = now_ms() + 5000;
    while (byte_is_held(pool.name, kvshm::device_byte(1)) && now_ms() < end) usleep(1000);
    const bool free = !byte_is_held(pool.name, kvshm::device_byte(1));
    ::kill(child, SIGKILL);
    CHILD_CHECK(free);
    return int(testing::Test::HasFailure());
  });
  const char said = process.listen();
  process.tell();
  const int code = process.wait();
  if (code == kNone) GTEST_SKIP() << "no such engine here";
  EXPECT_EQ(said, 'r');
  EXPECT_EQ(code, 0);
}

INSTANTIATE_TEST_SUITE_P(Both, TierEngine, testing::ValuesIn(kBoth),
                         [](const testing::TestParamInfo<std::uint32_t>& i) {
                           return i.param == KVSHM_TIER_URING ? "Ring" : "Threads";
                         });
