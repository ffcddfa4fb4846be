// SPDX-License-Identifier: Apache-2.0
// A kernel that refuses io_uring, all of it or a part, at once or later: what runs then, and what is
// said of it. By real seccomp filters, the real sysctl and real limits, each in a child.
#include <linux/capability.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "engine_support.hpp"
#include "refusal.h"

using namespace kvshm_test;

namespace {

bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "\"%s\" does not say \"%s\"\n", text.c_str(), part.c_str());
  return false;
}

bool there_is_io_uring(Pool& pool) {
  File f = scratch();
  return open_it(KVSHM_TIER_URING, pool.a, {f.get()}).rc == 0;
}

#define NEEDS_IO_URING(pool) \
  if (!there_is_io_uring(pool)) GTEST_SKIP() << kvshm_last_error()

int works(Engine& e) {
  Memory from(16384), to(16384);
  fill_random(from.at, from.bytes, 9);
  CHILD_CHECK(one(e, {.kind = Transfer::kWrite, .bytes = 16384, .data = from.at}) == 16384);
  CHILD_CHECK(one(e, {.kind = Transfer::kSync}) == 0);
  CHILD_CHECK(one(e, {.bytes = 16384, .data = to.at}) == 16384);
  CHILD_CHECK(!std::memcmp(from.at, to.at, 16384));
  return 0;
}

// In a process of its own, where `spoil` has been done: threads run, and the cause is told.
void expect_threads(Pool& pool, const std::function<int()>& spoil,
                    const std::vector<std::string>& said) {
  Child process([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    File f = scratch();
    CHILD_CHECK(a && f && spoil() == 0);
    Opened wished = open_it(KVSHM_TIER_URING, a, {f.get()});
    CHILD_CHECK(wished.rc == -KVSHM_EUNSUPPORTED && !wished.engine);
    for (auto& part : said) CHILD_CHECK(has(kvshm_last_error(), part));
    Opened o = open_it(KVSHM_TIER_AUTO, a, {f.get()});
    CHILD_CHECK(o.rc == 0 && o.engine->kind() == KVSHM_TIER_THREADS);
    for (auto& part : said) CHILD_CHECK(has(o.why, part));
    // What was tried has left nothing behind.
    CHILD_CHECK(becomes_free(pool.name, kvshm::device_byte(inside(a).slot), 5000));
    return works(*o.engine);
  });
  EXPECT_EQ(process.wait(), 0) << said[0];
}

int refuse(long call, int error, unsigned flags = 0) {
  const refusal r = {call, -1, 0, error};
  return refuse_calls(&r, 1, flags);
}

// Before the test's process makes it so, and after it whatever happens.
class Sysctl {
 public:
  explicit Sysctl(const char* value) {
    std::ifstream(kPath) >> before_;
    if (!before_.empty()) set_ = bool(std::ofstream(kPath) << value << std::flush);
  }
  ~Sysctl() {
    if (set_) std::ofstream(kPath) << before_ << std::flush;
  }
  bool set() const { return set_; }

 private:
  static constexpr const char* kPath = "/proc/sys/kernel/io_uring_disabled";
  std::string before_;
  bool set_ = false;
};

int drop_capability(unsigned which) {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2];
  if (syscall(SYS_capget, &header, sets)) return -errno;
  sets[which / 32].effective &= ~(1u << which % 32);
  return syscall(SYS_capset, &header, sets) ? -errno : 0;
}

std::string logged;
void keep_log(int, const char* line, void*) { logged += std::string(line) + "\n"; }

}  // namespace

TEST(TierRefused, ByAFilter) {
  Pool pool;
  NEEDS_IO_URING(pool);
  struct {
    long call;
    int error;
    std::vector<std::string> said;
  } const cases[] = {
      {SYS_io_uring_setup, EPERM, {"seccomp", "io_uring_setup", "EPERM"}},
      {SYS_io_uring_setup, EACCES, {"seccomp", "io_uring_setup", "EACCES"}},
      {SYS_io_uring_setup, ENOSYS, {"seccomp"}},
      {SYS_io_uring_enter, EPERM, {"seccomp", "io_uring_enter", "EPERM"}},
      {SYS_io_uring_enter, ENOSYS, {"seccomp", "io_uring_enter", "ENOSYS"}},
      {SYS_io_uring_register, EPERM, {"seccomp", "io_uring_register", "EPERM"}},
      {SYS_io_uring_register, ENOSYS, {"seccomp", "io_uring_register", "ENOSYS"}},
      {SYS_io_uring_setup, ENOMEM, {"no memory for a ring"}},
      {SYS_io_uring_setup, EMFILE, {"io_uring_setup", "Too many open files"}},
  };
  for (auto& c : cases) expect_threads(pool, [&] { return refuse(c.call, c.error); }, c.said);
}

TEST(TierRefused, BySysctl) {
  Pool pool;
  NEEDS_IO_URING(pool);
  Sysctl off("2");
  if (!off.set()) GTEST_SKIP() << "kernel.io_uring_disabled cannot be set here";
  expect_threads(pool, [] { return 0; }, {"kernel.io_uring_disabled = 2"});
}

TEST(TierRefused, BySysctlForWhoHasNoCapability) {
  constexpr unsigned kSysAdmin = 21;
  Pool pool;
  NEEDS_IO_URING(pool);
  Sysctl few("1");
  if (!few.set()) GTEST_SKIP() << "kernel.io_uring_disabled cannot be set here";
  expect_threads(pool, [] { return drop_capability(kSysAdmin); },
                 {"kernel.io_uring_disabled = 1", "CAP_SYS_ADMIN"});
  EXPECT_TRUE(there_is_io_uring(pool));
}

// Calls begin to fail with reads handed over, queued, and half of them landed: wait() says so, and
// what is under way is fenced all the same.
TEST(TierRefused, Later) {
  constexpr unsigned kReads = 16;
  Pool pool;
  NEEDS_IO_URING(pool);
  Source source(kReads);
  for (const int error : {EPERM, ENOSYS}) {
    Child process([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      File in = source.direct();
      if (!in) return kNone;
      Memory m(kReads * kMiB);
      Opened o = open_it(KVSHM_TIER_AUTO, a, {in.get()});
      CHILD_CHECK(o.rc == 0 && o.engine->kind() == KVSHM_TIER_URING);
      Engine& e = *o.engine;
      for (unsigned i = 0; i < kReads; i++) {
        CHILD_CHECK(e.start({.bytes = kMiB, .data = m.at + i * kMiB, .offset = i * kMiB}) == 0);
        Landed out[1];
        if (i == kReads / 2) CHILD_CHECK(e.wait(out, 0, 0) == 0);
      }
      // From another thread: the one that owns the ring is in the middle of something.
      int rc = 1;
      std::thread([&] {
        rc = refuse(SYS_io_uring_enter, error, SECCOMP_FILTER_FLAG_TSYNC);
      }).join();
      CHILD_CHECK(rc == 0);
      int n;
      unsigned given = 0;
      const std::int64_t end = now_ms() + 20000;
      do {
        Landed out[4];
        n = e.wait(out, 4, 100);
        if (n > 0) given += unsigned(n);
      } while (n >= 0 && now_ms() < end);
      CHILD_CHECK(n == -error);
      CHILD_CHECK(e.in_flight() == kReads - given);
      Landed out[1];
      CHILD_CHECK(e.wait(out, 1, 100) == -error);  // and stays so
      e.kick();
      CHILD_CHECK(!e.idle());
      const int fence = e.abandon();
      CHILD_CHECK(fence >= 0 && e.in_flight() == 0);
      CHILD_CHECK(hangs_up(fence, 20000));
      m.blank();
      usleep(200000);
      CHILD_CHECK(m.is_blank());
      Opened again = open_it(KVSHM_TIER_AUTO, a, {in.get()});
      CHILD_CHECK(again.rc == 0 && again.engine->kind() == KVSHM_TIER_THREADS);
      CHILD_CHECK(has(again.why, "io_uring_enter"));
      CHILD_CHECK(one(*again.engine, {.bytes = kMiB, .data = m.at}) == int(kMiB));
      CHILD_CHECK(!std::memcmp(m.at, source.content(0, kMiB).data(), kMiB));
      return 0;
    });
    const int code = process.wait();
    if (code == kNone) GTEST_SKIP() << "no O_DIRECT here";
    EXPECT_EQ(code, 0);
  }
}

// Depths that the kernel has no memory for: fewer entries, and threads only at the end.
TEST(TierRefused, LargeRings) {
  Pool pool;
  NEEDS_IO_URING(pool);
  File f = scratch();
  Opened absurd = open_it(KVSHM_TIER_URING, pool.a, {f.get()}, 1u << 24);
  ASSERT_EQ(absurd.rc, 0) << kvshm_last_error();
  EXPECT_GE(absurd.engine->entries(), 4096u);
  EXPECT_LT(absurd.engine->entries(), 1u << 24);
  EXPECT_EQ(works(*absurd.engine), 0);

  Child process([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    const refusal large = {SYS_io_uring_setup, 0, ~0x3fu, ENOMEM};  // of 64 entries and more
    CHILD_CHECK(a && refuse_calls(&large, 1, 0) == 0);
    kvshm_set_log(keep_log, nullptr);
    File mine = scratch();
    Opened o = open_it(KVSHM_TIER_AUTO, a, {mine.get()}, 256);
    CHILD_CHECK(o.rc == 0 && o.engine->kind() == KVSHM_TIER_URING && o.why.empty());
    CHILD_CHECK(o.engine->entries() >= 16 && o.engine->entries() < 64);
    CHILD_CHECK(has(logged, "in place of 256"));
    return works(*o.engine);
  });
  EXPECT_EQ(process.wait(), 0);
}

// RLIMIT_MEMLOCK lets one slice of two be registered, or none: the rest is moved all the same.
static void expect_buffers(unsigned limit_mib, unsigned slices) {
  constexpr unsigned kBlocks = 80, kIpcLock = 14;
  Pool pool({.blocks = kBlocks, .block_bytes = kMiB});
  NEEDS_IO_URING(pool);
  Child process([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    kvshm_set_log(keep_log, nullptr);
    if (drop_capability(kIpcLock)) return kNone;
    const rlim_t bytes = rlim_t{limit_mib} * kMiB;
    const struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_MEMLOCK, &limit)) return kNone;
    File f = scratch();
    const int files[] = {f.get()};
    const handles_t fills = fill_blocks(a, kBlocks);
    std::unique_ptr<Engine> e;
    std::string why;
    CHILD_CHECK(open_engine(KVSHM_TIER_URING,
                            {.files = files,
                             .nfiles = 1,
                             .arenas = {&inside(a), nullptr},
                             .entries = 8,
                             .memory = static_cast<std::byte*>(kvshm_block_data(a, 0)),
                             .memory_bytes = kBlocks * std::uint64_t{kMiB},
                             .block_bytes = kMiB},
                            &e, &why) == 0);
    unsigned turns = 0;
    while (e->idle()) CHILD_CHECK(turns++ < 10);
    CHILD_CHECK(!e->registered() && turns == slices);
    for (auto& part : {"RLIMIT_MEMLOCK", "83886080", "memlock"}) CHILD_CHECK(has(logged, part));
    CHILD_CHECK(has(logged, std::to_string(bytes)));
    const std::string before = logged;
    CHILD_CHECK(!e->idle() && logged == before);  // one line
    for (const unsigned b : {0u, 63u, 64u, kBlocks - 1}) {
      auto* p = static_cast<std::uint8_t*>(kvshm_block_data(a, b));
      Memory right(kMiB);
      fill_random(right.at, kMiB, b);
      std::memcpy(p, right.at, kMiB);
      CHILD_CHECK(one(*e, {.kind = Transfer::kWrite, .bytes = kMiB, .data = p}) == int(kMiB));
      std::memset(p, kBlank, kMiB);
      CHILD_CHECK(one(*e, {.bytes = kMiB, .data = p}) == int(kMiB));
      CHILD_CHECK(!std::memcmp(p, right.at, kMiB));
    }
    return abort_fills(a, fills);
  });
  const int code = process.wait();
  if (code == kNone) GTEST_SKIP() << "no limit of " << limit_mib << " MiB can be set here";
  EXPECT_EQ(code, 0) << limit_mib;
}

TEST(TierRefused, AllBuffers) { expect_buffers(1, 0); }
TEST(TierRefused, SomeBuffers) { expect_buffers(70, 1); }
