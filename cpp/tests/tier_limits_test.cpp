// SPDX-License-Identifier: Apache-2.0
// A tier under the limits of its process and of its device: descriptors, locked memory, alignment,
// O_DIRECT; and chains whose heads are gone.
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

#include "mount_support.hpp"
#include "refusal.h"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

unsigned descriptors() {
  unsigned n = 0;
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    n += !entry.path().empty();
  return n;
}

int limit(decltype(RLIMIT_NOFILE) what, rlim_t n) {
  struct rlimit r;
  if (getrlimit(what, &r)) return -errno;
  r.rlim_cur = n;
  return setrlimit(what, &r);
}

int goes_down_and_up(kvshm_arena* a, const keys_t& keys) {
  cache_chain(a, keys);
  CHILD_CHECK(kvshm_tier_drain(a, 20000) == 0);
  CHILD_CHECK(kvshm_clear(a) >= std::int64_t(keys.size()));
  CHILD_CHECK(load_chain(a, keys).right == keys.size());
  return 0;
}

std::vector<std::string> lines;
std::mutex lines_mutex;  // the mover's thread says some
void keep(int, const char* line, void*) {
  std::lock_guard<std::mutex> lock(lines_mutex);
  lines.push_back(line);
}
unsigned lines_with(const char* text) {
  std::lock_guard<std::mutex> lock(lines_mutex);
  unsigned n = 0;
  for (auto& l : lines) n += l.find(text) != std::string::npos;
  return n;
}

TierSpec spec_of(std::uint32_t engine, std::uint32_t direct = KVSHM_AUTO) {
  TierSpec s;
  s.engine = engine;
  s.direct = direct;
  s.bytes = 16 << 20;
  return s;
}

}  // namespace

// Item 57: 64 descriptors are enough, and what fails keeps none.
TEST(TierLimits, FewDescriptors) {
  TierFile file("few"), foreign("foreign"), taken("taken");
  kvshm::File text(open(foreign.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(text.get(), "no tier at all", 14), 14);
  Pool pool({256, 4096}), other({16, 8192});
  {
    Pool former({16, 8192});  // blocks of another size
    ASSERT_EQ(open_tier(former.a, taken.path), 0) << kvshm_last_error();
  }
  Child process([&](Wire&) {
    CHILD_CHECK(limit(RLIMIT_NOFILE, 64) == 0);
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a && open_tier(a, file.path, spec_of(KVSHM_TIER_AUTO)) == 0 && await_tier(a));
    for (std::uint64_t c = 0; c < 10; c++)
      if (int rc = goes_down_and_up(a, keys_of(1 + c * 200, 200))) return rc;
    kvshm_arena* b = attach(pool.name);
    const unsigned before = descriptors();
    const std::string nowhere = "/proc/none/tier", folder = "/var/tmp";
    for (int i = 0; i < 1500; i++) {
      CHILD_CHECK(open_tier(b, nowhere) == -ENOENT);
      CHILD_CHECK(open_tier(b, foreign.path) == -KVSHM_ELAYOUT);
      CHILD_CHECK(open_tier(b, folder) == -EISDIR);
      CHILD_CHECK(open_tier(b, taken.path) == -KVSHM_EGEOMETRY);
    }
    CHILD_CHECK(descriptors() == before);
    CHILD_CHECK(kvshm_close(b, 1000) == 0);
    return goes_down_and_up(a, keys_of(100000, 200));
  });
  EXPECT_EQ(process.wait(), 0);
}

// They run out at each point of the way in: it is refused or has come in, and keeps none.
TEST(TierLimits, DescriptorsRunOut) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer follows no child that is forked beside threads and starts some";
#endif
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan looks at objects through a pipe, and reports them bad without descriptors";
#endif
  TierFile file("out");
  Pool pool({64, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  for (const std::uint32_t engine : {KVSHM_TIER_AUTO, KVSHM_TIER_THREADS}) {
    Child process([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      unsigned refused = 0;
      const unsigned before = descriptors();
      for (rlim_t n = 3;; n++) {
        CHILD_CHECK(n < 200 && limit(RLIMIT_NOFILE, n) == 0);
        const int rc = open_tier(a, file.path, spec_of(engine));
        CHILD_CHECK(limit(RLIMIT_NOFILE, 256) == 0);
        if (rc == 0) break;
        CHILD_CHECK(rc == -EMFILE || rc == -KVSHM_EUNSUPPORTED || rc == -ENOMEM);
        CHILD_CHECK(*kvshm_last_error());
        CHILD_CHECK(descriptors() == before);
        refused++;
      }
      CHILD_CHECK(refused > 5);
      CHILD_CHECK(await_tier(a));
      CHILD_CHECK(goes_down_and_up(a, keys_of(1, 20)) == 0);
      CHILD_CHECK(kvshm_close(a, 5000) == 0);
      return 0;
    });
    EXPECT_EQ(process.wait(), 0) << engine;
  }
}

// Item 48: four of a user who may lock next to nothing. The kernel counts what a real user locks in
// all processes, and a ring that has ended for a while yet: these have a user that nobody else is.
// Forked before the tier has a thread: one that allocates would leave ThreadSanitizer's lock behind.
TEST(TierLimits, LittleLockedMemory) {
  constexpr unsigned kIpcLock = 14;
  TierFile file("locked");
  Pool pool({256, 65536});
  const auto user = uid_t(1000000 + getpid());
  std::vector<Child> children;
  for (unsigned c = 0; c < 4; c++)
    children.emplace_back([&, c](Wire& wire) {
      std::uint32_t engine;
      CHILD_CHECK(wire.receive(&engine, sizeof engine));
      const bool alone = syscall(SYS_setresuid, user, uid_t(-1), uid_t(-1)) == 0;
      __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct sets[2];
      CHILD_CHECK(syscall(SYS_capget, &header, sets) == 0);
      sets[0].effective &= ~(1u << kIpcLock);
      CHILD_CHECK(syscall(SYS_capset, &header, sets) == 0);
      CHILD_CHECK(limit(RLIMIT_MEMLOCK, 65536) == 0);
      lines.clear();
      kvshm_set_log(keep, nullptr);
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a && open_tier(a, file.path, spec_of(KVSHM_TIER_AUTO)) == 0 && await_tier(a));
      kvshm_tier t = tier_of(a);
      const bool none = std::strstr(t.why, "RLIMIT_MEMLOCK");  // left for a ring by others
      CHILD_CHECK(t.engine == engine || (!alone && none));
      // Once idle it tries to register the arena.
      const std::int64_t limit_ms = now_ms() + 10000;
      while (t.engine == KVSHM_TIER_URING && !lines_with("RLIMIT_MEMLOCK") && now_ms() < limit_ms)
        usleep(2000);
      t = tier_of(a);
      CHILD_CHECK(!t.registered);
      CHILD_CHECK(t.engine != KVSHM_TIER_URING || lines_with("RLIMIT_MEMLOCK is 65536") == 1);
      wire.tell();
      CHILD_CHECK(wire.listen());
      const keys_t keys = keys_of(1 + 100 * c, 30);
      cache_chain(a, keys);
      CHILD_CHECK(kvshm_tier_drain(a, 20000) == 0);
      wire.tell();
      CHILD_CHECK(wire.listen());
      CHILD_CHECK(load_chain(a, keys).right == keys.size());
      CHILD_CHECK(lines_with("RLIMIT_MEMLOCK") <= 1);
      return 0;
    });
  ASSERT_EQ(open_tier(pool.a, file.path, spec_of(KVSHM_TIER_AUTO)), 0) << kvshm_last_error();
  const std::uint32_t engine = tier_of(pool.a).engine;
  for (Child& c : children) c.wire().send(&engine, sizeof engine);
  for (Child& c : children) ASSERT_TRUE(c.listen());
  for (Child& c : children) c.tell();
  for (Child& c : children) ASSERT_TRUE(c.listen());
  EXPECT_EQ(kvshm_clear(pool.a), 120);
  for (Child& c : children) c.tell();
  for (Child& c : children) EXPECT_EQ(c.wait(), 0);
}

// Item 63: the device's sectors, asked for; blocks of all sizes, direct and not.
TEST(TierLimits, Sectors) {
  for (const unsigned sector : {512u, 4096u}) {
    NEEDS_EXT4(disk, 64, sector);
    for (const std::uint64_t bytes : {64u, 512u, 4032u, 4096u, 4160u, 3098112u})
      for (const std::uint32_t direct : {KVSHM_REQUIRE, KVSHM_OFF})
        for (const std::uint32_t engine : {KVSHM_TIER_URING, KVSHM_TIER_THREADS}) {
          Pool pool({8, bytes});
          const int rc = open_tier(pool.a, disk.file(), spec_of(engine, direct));
          if (rc == -KVSHM_EUNSUPPORTED && engine == KVSHM_TIER_URING) continue;
          ASSERT_EQ(rc, 0) << kvshm_last_error();
          ASSERT_TRUE(await_tier(pool.a));
          const kvshm_tier t = tier_of(pool.a);
          EXPECT_EQ(t.direct, direct == KVSHM_REQUIRE ? 1u : 0u);
          EXPECT_GE(t.slot_bytes, bytes);
          if (t.direct) {
            EXPECT_GE(t.align, sector) << "its alignment is asked for";
          }
          EXPECT_EQ(goes_down_and_up(pool.a, keys_of(bytes, 4)), 0)
              << sector << " " << bytes << " " << direct << " " << engine;
          pool.leave();
          unlink(disk.file().c_str());
        }
  }
}

// Item 64: O_DIRECT refused at open, and later.
TEST(TierLimits, NoDirectTransfers) {
  const refusal no[] = {{SYS_openat, 2, REFUSAL_DIRECT, EINVAL}};
  TierFile file("refused");
  for (const std::uint32_t direct : {KVSHM_AUTO, KVSHM_OFF, KVSHM_REQUIRE}) {
    Pool pool({64, 4096});
    Child process([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      lines.clear();
      kvshm_set_log(keep, nullptr);
      CHILD_CHECK(a && refuse_calls(no, 1, 0) == 0);
      const int rc = open_tier(a, file.path, spec_of(KVSHM_TIER_AUTO, direct));
      if (direct == KVSHM_REQUIRE) {
        CHILD_CHECK(rc == -KVSHM_EUNSUPPORTED);
        CHILD_CHECK(std::string(kvshm_last_error()).find("O_DIRECT is required") !=
                    std::string::npos);
        return 0;
      }
      CHILD_CHECK(rc == 0 && await_tier(a));
      const kvshm_tier t = tier_of(a);
      CHILD_CHECK(!t.direct);
      const bool said = std::string(t.why).find("O_DIRECT is refused") != std::string::npos;
      CHILD_CHECK(said == (direct == KVSHM_AUTO));
      CHILD_CHECK(lines_with("O_DIRECT is refused") == (direct == KVSHM_AUTO ? 1 : 0));
      return goes_down_and_up(a, keys_of(1, 32));
    });
    EXPECT_EQ(process.wait(), 0) << direct;
    unlink(file.path.c_str());
  }
}

// Item 67: what has lost its head is not found, is counted, and goes first.
TEST(TierLimits, ChainsWithoutHeads) {
  constexpr std::uint64_t kChains = 20, kLength = 16;
  TierFile file("heads");
  Pool pool({512, 4096});
  TierSpec s;
  s.bytes = 400 * 4096;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  auto chain = [](std::uint64_t c) { return keys_of(1 + c * 100, kLength); };
  // No tail is there without its head, but for the moment in which several writes land.
  for (std::uint64_t c = 0; c < kChains; c++) {
    cache_chain(pool.a, chain(c));
    std::int64_t since = 0, end = now_ms() + 20000;
    do {
      // From the tail on: what comes meanwhile comes in front of it.
      std::uint64_t missing = kLength, tail = 0;
      for (std::uint64_t i = kLength; i-- > 0;) {
        std::uint8_t mask = 0;
        kvshm_presence(pool.a, raw(key_of(1 + c * 100 + i)), 1, &mask);
        if (!(mask & KVSHM_IN_G3))
          missing = i;
        else if (!tail)
          tail = i + 1;
      }
      if (missing >= tail) since = 0;
      if (missing < tail && !since) since = now_ms();
      ASSERT_TRUE(!since || now_ms() - since < 1000) << "no head " << missing << " of " << tail;
    } while (tier_of(pool.a).queued && now_ms() < end);
    EXPECT_EQ(load_chain(pool.a, chain(c)).right, kLength);
  }
  ASSERT_EQ(kvshm_clear(pool.a), std::int64_t(kChains * kLength));
  kvshm_arena* image = attach(tier_of(pool.a).image);
  ASSERT_TRUE(image);
  for (std::uint64_t c = 0; c < kChains / 2; c++) {
    const keys_t head = keys_of(1 + c * 100, 2);
    EXPECT_EQ(kvshm_evict(image, raw(head), 2), 2);
  }
  EXPECT_EQ(tier_of(pool.a).slots_ready, kChains * kLength - kChains);
  for (std::uint64_t c = 0; c < kChains; c++)
    EXPECT_EQ(load_chain(pool.a, chain(c)).promised, c < kChains / 2 ? 0 : std::int64_t(kLength));
  // New blocks take the place of those that nobody finds.
  for (std::uint64_t c = 0; c < 12; c++) {
    cache_chain(pool.a, keys_of(50000 + c * 100, kLength));
    ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  }
  ASSERT_GE(kvshm_clear(pool.a), 0);
  std::int64_t whole = 0;
  for (std::uint64_t c = kChains / 2; c < kChains; c++)
    whole += load_chain(pool.a, chain(c)).held == std::int64_t{kLength};
  EXPECT_GE(whole, std::int64_t(kChains) / 2 - 2);
  std::printf("%lld of %llu whole chains outlived those without heads\n", (long long)whole,
              (unsigned long long)kChains / 2);
  kvshm_close(image, 1000);
}
