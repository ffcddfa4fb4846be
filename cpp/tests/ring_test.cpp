// SPDX-License-Identifier: Apache-2.0
// The ring helper: what it moves, its limits, and that its device byte outlives its process until
// the last transfer has landed.
#include "device/ring.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#ifdef KVSHM_HAVE_IO_URING
#include <liburing.h>
#endif

#include <algorithm>

#include "capi/call.hpp"
#include "device/guard.hpp"
#include "disk_support.hpp"
#include "support.hpp"

using namespace kvshm_test;
using kvshm::Landed;
using kvshm::Ring;
using kvshm::Transfer;

namespace {

kvshm::Arena& inside(kvshm_arena* a) { return *a->impl; }

std::unique_ptr<Ring> ring_of(kvshm_arena* a, unsigned entries = 32) {
  std::unique_ptr<Ring> r;
  const int rc = Ring::open(inside(a), entries, &r);
  EXPECT_EQ(rc, 0) << kvshm_last_error();
  return r;
}

bool no_io_uring(kvshm_arena* a) {
  std::unique_ptr<Ring> r;
  const bool none = Ring::open(inside(a), 2, &r) == -KVSHM_EUNSUPPORTED;
  if (r) r->end(1000);
  return none;
}

#define NEEDS_IO_URING(pool) \
  if (no_io_uring(pool.a)) GTEST_SKIP() << kvshm_last_error()

void* data(kvshm_arena* a, kvshm_handle h) { return kvshm_block_data(a, h.id); }

}  // namespace

TEST(Ring, MovesBytesBothWays) {
  Pool pool({.blocks = 4, .block_bytes = kMiB});
  NEEDS_IO_URING(pool);
  Source source(3);
  kvshm::File in = source.direct();
  if (!in) GTEST_SKIP() << "O_DIRECT on " << source.path << ": " << std::strerror(errno);
  const handles_t fills = fill_blocks(pool.a, 3);
  auto ring = ring_of(pool.a);
  ASSERT_TRUE(ring);
  ASSERT_EQ(ring->set_file(1, in.get()), 0);
  in.reset();  // the ring keeps it
  for (unsigned i = 0; i < 3; i++)
    ASSERT_EQ(
        ring->start(
            {.bytes = kMiB, .data = data(pool.a, fills[i]), .offset = i * kMiB, .token = 100 + i}),
        0);
  EXPECT_EQ(ring->in_flight(), 3u);
  EXPECT_EQ(ring->submit(), 3);
  EXPECT_EQ(ring->drain(10000), 0);
  EXPECT_EQ(ring->in_flight(), 3u);  // landed, not yet given out
  Landed done[8];
  std::uint64_t tokens = 0;
  int n = ring->wait(done, 8, 0);
  ASSERT_EQ(n, 3);
  for (int i = 0; i < n; i++) {
    EXPECT_EQ(done[i].result, int(kMiB));
    tokens += done[i].token;
  }
  EXPECT_EQ(tokens, 303u);
  EXPECT_EQ(ring->in_flight(), 0u);
  EXPECT_EQ(ring->wait(done, 8, 1000), 0);  // nothing flies: no waiting
  for (unsigned i = 0; i < 3; i++)
    EXPECT_TRUE(std::memcmp(data(pool.a, fills[i]), source.content(i * kMiB, kMiB).data(), kMiB) ==
                0);

  kvshm::File out(
      open((source.path.string() + ".out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  unlink((source.path.string() + ".out").c_str());
  ASSERT_EQ(ring->set_file(2, out.get()), 0);
  ASSERT_EQ(ring->start({.write = true, .file = 2, .bytes = 4096, .data = data(pool.a, fills[1])}),
            0);
  ASSERT_EQ(ring->wait(done, 1, 10000), 1);  // hands over what is queued
  EXPECT_EQ(done[0].result, 4096);
  std::string back(4096, 0);
  EXPECT_EQ(pread(out.get(), back.data(), 4096, 0), 4096);
  EXPECT_EQ(back, source.content(kMiB, 4096));
  EXPECT_EQ(ring->end(1000), 0);
  EXPECT_EQ(abort_fills(pool.a, fills), 0);
}

TEST(Ring, HasLimits) {
  Pool pool({.blocks = 2, .block_bytes = 4096});
  NEEDS_IO_URING(pool);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);  // a read of it takes as long as the test wants
  kvshm::File in(ends[0]), out(ends[1]);
  const handles_t fills = fill_blocks(pool.a, 1);
  auto ring = ring_of(pool.a, 2);
  ASSERT_TRUE(ring);
  EXPECT_EQ(ring->set_file(0, in.get()), -EINVAL);  // the guard's
  EXPECT_EQ(ring->set_file(Ring::kFiles, in.get()), -EINVAL);
  ASSERT_EQ(ring->set_file(1, in.get()), 0);
  const Transfer t{.bytes = 1, .data = data(pool.a, fills[0])};
  EXPECT_EQ(ring->start({.file = 0, .bytes = 1, .data = t.data}), -EINVAL);
  for (unsigned i = 0; i < ring->entries(); i++) ASSERT_EQ(ring->start(t), 0);
  EXPECT_EQ(ring->start(t), -EAGAIN);
  ASSERT_EQ(ring->submit(), int(ring->entries()));
  Landed done[8];
  std::int64_t before = now_ms();
  EXPECT_EQ(ring->wait(done, 8, 30), -ETIMEDOUT);
  EXPECT_EQ(ring->drain(30), -ETIMEDOUT);
  EXPECT_EQ(ring->end(30), -ETIMEDOUT);
  EXPECT_GE(now_ms() - before, 80);
  EXPECT_EQ(ring->in_flight(), ring->entries());

  // One has landed: no drain yet, and the landed one is given out.
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  ASSERT_EQ(ring->wait(done, 8, 10000), 1);
  EXPECT_EQ(done[0].result, 1);
  EXPECT_EQ(ring->drain(30), -ETIMEDOUT);
  const std::string rest(ring->in_flight(), 'y');
  ASSERT_EQ(write(ends[1], rest.data(), rest.size()), ssize_t(rest.size()));
  EXPECT_EQ(ring->end(10000), 0);
  EXPECT_EQ(ring->start(t), -KVSHM_ECLOSED);
  EXPECT_EQ(ring->in_flight(), 0u);
}

TEST(Ring, ArenaClosesOnlyAfterIt) {
  Pool pool({.blocks = 2, .block_bytes = 4096});
  NEEDS_IO_URING(pool);
  auto one = ring_of(pool.a), two = ring_of(pool.a);
  ASSERT_TRUE(one && two);
  EXPECT_FALSE(kvshm::device_idle(inside(pool.a)));
  EXPECT_EQ(one->end(1000), 0);
  EXPECT_EQ(kvshm_close(pool.a, 50), -EBUSY);
  EXPECT_NE(std::string(kvshm_last_error()).find("io_uring"), std::string::npos);
  EXPECT_EQ(abort_fills(pool.a, fill_blocks(pool.a, 1)), 0);  // nothing has changed
  two.reset();
  EXPECT_EQ(kvshm_close(pool.a, 5000), 0);
  pool.a = nullptr;
}

#ifdef KVSHM_HAVE_IO_URING
// Rings that somebody else made, with or without a table of files of their own.
TEST(Ring, GuardsOthers) {
  Pool pool({.blocks = 2, .block_bytes = 4096});
  NEEDS_IO_URING(pool);
  const off_t byte = kvshm::device_byte(0);
  ASSERT_TRUE(becomes_free(pool.name, byte, 5000));  // the probe's ring is torn down
  kvshm::File null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int table[] = {null.get(), -1, null.get(), -1};

  struct io_uring bare = {}, full = {}, own = {};
  ASSERT_EQ(io_uring_queue_init(4, &bare, 0), 0);
  EXPECT_EQ(kvshm_ring_guard(pool.a, bare.ring_fd, 0), -ENXIO);
  EXPECT_EQ(kvshm_ring_guard(pool.a, bare.ring_fd, KVSHM_NONE), 0) << kvshm_last_error();
  EXPECT_TRUE(byte_is_held(pool.name, byte));
  io_uring_queue_exit(&bare);
  EXPECT_TRUE(becomes_free(pool.name, byte, 5000));

  ASSERT_EQ(io_uring_queue_init(4, &full, 0), 0);
  ASSERT_EQ(io_uring_register_files(&full, table, 4), 0);
  EXPECT_EQ(kvshm_ring_guard(pool.a, full.ring_fd, KVSHM_NONE), -EBUSY);
  EXPECT_NE(std::string(kvshm_last_error()).find("place"), std::string::npos);
  EXPECT_EQ(kvshm_ring_guard(pool.a, full.ring_fd, 4), -EINVAL);
  EXPECT_TRUE(becomes_free(pool.name, byte, 1000));  // nothing is left of what failed
  EXPECT_EQ(kvshm_ring_guard(pool.a, full.ring_fd, 3), 0) << kvshm_last_error();
  EXPECT_TRUE(byte_is_held(pool.name, byte));
  io_uring_queue_exit(&full);
  EXPECT_TRUE(becomes_free(pool.name, byte, 5000));

  ASSERT_EQ(io_uring_queue_init(4, &own, 0), 0);
  ASSERT_EQ(io_uring_register_files(&own, table, 4), 0);
  int fd = kvshm_guard_fd(pool.a);
  ASSERT_GE(fd, 0) << kvshm_last_error();
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(io_uring_register_files_update(&own, 1, &fd, 1), 1);
  close(fd);
  EXPECT_TRUE(byte_is_held(pool.name, byte));
  io_uring_queue_exit(&own);
  EXPECT_TRUE(becomes_free(pool.name, byte, 5000));

  EXPECT_LT(kvshm_ring_guard(pool.a, null.get(), KVSHM_NONE), 0);
  EXPECT_NE(std::string(kvshm_last_error()).find("no io_uring"), std::string::npos);
  EXPECT_EQ(kvshm_ring_guard(pool.a, 999999, KVSHM_NONE), -EBADF);
  EXPECT_TRUE(becomes_free(pool.name, byte, 1000));
}
#endif

// A child has neither memory nor descriptor of it: its parent's death is the end of the ring.
TEST(Ring, IsNotInherited) {
  Pool pool({.blocks = 4, .block_bytes = 4096});
  NEEDS_IO_URING(pool);
  struct Said {
    pid_t child;
    char refused;
  };
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    std::unique_ptr<Ring> ring;
    CHILD_CHECK(Ring::open(inside(a), 4, &ring) == 0);
    int ends[2];
    CHILD_CHECK(pipe(ends) == 0);
    Said said = {fork(), 'x'};
    if (said.child == 0) {
      alarm(60);
      const bool refused = ring->submit() == -KVSHM_EFORKED && ring->end(0) == -KVSHM_EFORKED;
      ring.reset();  // touches nothing that is not here
      Wire(-1, ends[1]).tell(refused ? 'r' : 'x');
      for (;;) pause();
    }
    said.refused = Wire(ends[0], -1).listen();
    wire.send(&said, sizeof said);
    wire.listen();
    return 0;
  });
  Said said = {};
  ASSERT_TRUE(process.wire().receive(&said, sizeof said));
  EXPECT_EQ(said.refused, 'r');
  EXPECT_TRUE(byte_is_held(pool.name, kvshm::device_byte(1)));
  process.kill();
  EXPECT_TRUE(becomes_free(pool.name, kvshm::life_byte(1), 2000));
  EXPECT_TRUE(becomes_free(pool.name, kvshm::device_byte(1), 5000));
  EXPECT_EQ(::kill(said.child, SIGKILL), 0);  // it was there all the while
}

// The guarantee that all of this is for, with 16 MiB under way from a disk that is made slow where
// control groups allow it.
TEST(Ring, BlocksOfTheDeadWaitForTheirTransfers) {
  constexpr unsigned kReads = 16, kSpare = 4;
  Pool pool({.blocks = kReads + kSpare, .block_bytes = kMiB});
  NEEDS_IO_URING(pool);
  Source source(kReads);
  kvshm::File in = source.direct();
  if (!in) GTEST_SKIP() << "O_DIRECT on " << source.path << ": " << std::strerror(errno);
  SlowDisk slow(in.get(), 32 * kMiB);
  handles_t fills(kReads);
  Child reader([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a && wire.listen());
    handles_t mine = fill_blocks(a, kReads);
    for (auto& h : mine) std::memset(data(a, h), kBlank, kMiB);
    std::unique_ptr<Ring> ring;
    CHILD_CHECK(Ring::open(inside(a), kReads, &ring) == 0 && ring->set_file(1, in.get()) == 0);
    for (unsigned i = 0; i < kReads; i++)
      CHILD_CHECK(ring->start({.bytes = kMiB, .data = data(a, mine[i]), .offset = i * kMiB}) == 0);
    CHILD_CHECK(ring->submit() == int(kReads));
    wire.send(mine.data(), mine.size() * sizeof mine[0]);
    wire.listen();
    return 0;
  });
  slow.take(reader.pid());
  reader.tell();
  ASSERT_TRUE(reader.wire().receive(fills.data(), fills.size() * sizeof fills[0]));
  auto landed = [&] {
    unsigned n = 0;
    for (auto& h : fills) {
      const auto* p = static_cast<const std::uint8_t*>(data(pool.a, h));
      n += p[0] != kBlank && p[kMiB - 1] != kBlank;
    }
    return n;
  };
  reader.kill();
  EXPECT_TRUE(becomes_free(pool.name, kvshm::life_byte(1), 500));
  const unsigned early = landed();
  if (early == kReads) {
    ASSERT_FALSE(slow.works()) << "nothing was in flight";
    GTEST_SKIP() << "the disk was too fast, and cannot be made slow: " << slow.why_not();
  }
  ASSERT_TRUE(byte_is_held(pool.name, kvshm::device_byte(1)));

  // Nobody gets a block of the dead, nor its slot.
  auto report = sized<kvshm_reap_report>();
  ASSERT_EQ(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(report.slots_draining, 1u);
  EXPECT_EQ(report.fills, 0u);
  handles_t spare = fill_blocks(pool.a, kSpare);
  kvshm_handle more;
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &more, nullptr, nullptr), -KVSHM_ENOSPACE);
  for (auto& h : fills) EXPECT_EQ(block(pool.a, h.id).state, unsigned(KVSHM_FILLING));
  auto info = sized<kvshm_info>();
  ASSERT_EQ(kvshm_get_info(pool.another(), &info), 0);
  EXPECT_EQ(info.slot, 2u);
  ASSERT_TRUE(byte_is_held(pool.name, kvshm::device_byte(1))) << "too late to show anything";

  ASSERT_TRUE(becomes_free(pool.name, kvshm::device_byte(1), 20000));
  EXPECT_EQ(landed(), kReads);
  for (unsigned i = 0; i < kReads; i++)
    EXPECT_TRUE(std::memcmp(data(pool.a, fills[i]), source.content(i * kMiB, kMiB).data(), kMiB) ==
                0)
        << i;
  EXPECT_EQ(abort_fills(pool.a, spare), 0);
  ASSERT_EQ(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(report.slots_cleared, 1u);
  EXPECT_EQ(report.fills, std::uint64_t{kReads});
  spare = fill_blocks(pool.a, kReads + kSpare);
  // What is written from now on stays.
  for (auto& h : spare) std::memset(data(pool.a, h), kBlank, kMiB);
  usleep(300000);
  for (auto& h : spare) {
    const auto* p = static_cast<const std::uint8_t*>(data(pool.a, h));
    EXPECT_EQ(std::count(p, p + kMiB, kBlank), std::ptrdiff_t{kMiB});
  }
  EXPECT_EQ(abort_fills(pool.a, spare), 0);
  EXPECT_EQ(broken(pool.a), "");
  std::printf("landed: %u at death, %u when the device byte was free\n", early, kReads);
}
