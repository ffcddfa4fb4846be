// SPDX-License-Identifier: Apache-2.0
// Kill and power cut: a process dies while it writes, and of what it wrote since its start some
// sectors are back to what they were, some only in part. What is found afterwards has the bytes of
// its key. With the comparison of checksums left out, wrong bytes are served: the test can see them.
#include <fcntl.h>
#include <sys/stat.h>

#include <cmath>
#include <random>

#include "arena/lock.hpp"
#include "tier/tier.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

constexpr std::uint64_t kBlockBytes = 8192, kKeys = 300;
constexpr std::size_t kSector = 512;  // a device tears no smaller

using bytes_t = std::vector<char>;

bytes_t content(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  struct stat st;
  fstat(fd, &st);
  bytes_t b(std::size_t(st.st_size));
  EXPECT_EQ(pread(fd, b.data(), b.size(), 0), ssize_t(b.size()));
  close(fd);
  return b;
}

// Until the last transfer of who died has landed: its rings hold this lock.
void await_quiet(const std::string& path) {
  kvshm::File f(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(kvshm::lock_byte_until(f.get(), true, off_t{1} << 62, kvshm::now_ms() + 20000), 0);
}

// Sectors that changed since `before` go back, each with the probability of this round.
std::size_t cut_power(const std::string& path, const bytes_t& before, std::mt19937_64& dice) {
  bytes_t now = content(path);
  const double lost = std::pow(10, std::uniform_real_distribution<>(-3, -0.2)(dice));
  std::bernoulli_distribution goes(lost);
  std::size_t n = 0;
  for (std::size_t at = 0; at + kSector <= now.size(); at += kSector) {
    if (at + kSector > before.size()) break;
    if (std::memcmp(&now[at], &before[at], kSector) == 0 || !goes(dice)) continue;
    std::memcpy(&now[at], &before[at], kSector);
    n++;
  }
  const int fd = open(path.c_str(), O_WRONLY);
  EXPECT_EQ(pwrite(fd, now.data(), now.size(), 0), ssize_t(now.size()));
  EXPECT_EQ(fsync(fd), 0);  // direct transfers come next
  close(fd);
  return n;
}

TierSpec small() {
  TierSpec s;
  s.bytes = 40 * kBlockBytes;
  return s;
}

int store_until_killed(const std::string& name, const std::string& path, std::uint64_t seed,
                       Wire& wire) {
  kvshm_options o = options({16, kBlockBytes});
  kvshm_arena* a = nullptr;
  CHILD_CHECK(kvshm_open(&a, name.c_str(), &o) == 0);
  CHILD_CHECK(open_tier(a, path, small()) == 0);
  CHILD_CHECK(await_tier(a));
  wire.tell();
  std::mt19937_64 dice(seed);
  for (;;) {
    const keys_t keys = keys_of(1 + dice() % kKeys * 8, 1 + dice() % 4);
    handles_t h(keys.size());
    const auto n = std::uint32_t(keys.size());
    if (kvshm_allocate(a, n, raw(keys), nullptr, h.data(), nullptr, nullptr)) continue;
    for (std::size_t i = 0; i < keys.size(); i++) write_payload(a, h[i].id, keys[i]);
    kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), nullptr);
    kvshm_drop(a, h.data(), n);
  }
}

struct Seen {
  std::uint64_t stored = 0, right = 0, wrong = 0, damaged = 0, lost_sectors = 0;
};

void play(int rounds, std::uint64_t seed, Seen* seen) {
  TierFile file("power");
  std::mt19937_64 dice(seed);
  for (int r = 0; r < rounds; r++) {
    const std::string name = fresh_name("power");
    const bytes_t before = access(file.path.c_str(), F_OK) ? bytes_t() : content(file.path);
    {
      const std::uint64_t s = dice();
      Child child([&](Wire& w) { return store_until_killed(name, file.path, s, w); });
      ASSERT_EQ(child.listen(), '.');
      usleep(useconds_t(3000 + dice() % 30000));
      child.kill();
      await_quiet(file.path);
    }
    kvshm_remove(name.c_str(), nullptr, 1);
    kvshm_remove((name + "-g3").c_str(), nullptr, 1);
    seen->lost_sectors += before.empty() ? 0 : cut_power(file.path, before, dice);
    Pool pool({16, kBlockBytes});
    ASSERT_EQ(open_tier(pool.a, file.path, small()), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a)) << r;
    seen->stored += tier_of(pool.a).slots_ready;
    for (std::uint64_t c = 0; c < kKeys; c++) {
      const keys_t keys = keys_of(1 + c * 8, 4);
      kvshm_load* load = nullptr;
      const std::int64_t n = kvshm_match_load(pool.a, raw(keys), 4, 0, 0, &load, nullptr);
      if (n <= 0) continue;
      ASSERT_EQ(kvshm_load_wait(load, 20000), 0);
      std::uint32_t ids[4];
      kvshm_load_status(load, nullptr, ids);
      for (std::int64_t i = 0; i < n; i++)
        if (ids[i] != KVSHM_NONE)
          ++(payload_right(pool.a, ids[i], keys[std::size_t(i)]) ? seen->right : seen->wrong);
      kvshm_load_free(load);
    }
    seen->damaged += stats(pool.a).tier_damaged_total;
    const std::string image = tier_of(pool.a).image;
    pool.leave();
    kvshm_remove(image.c_str(), nullptr, 1);
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kAllRounds = 20, kControlRounds = 20;  // these builds look at other things
#else
constexpr int kAllRounds = 200, kControlRounds = 40;
#endif

TEST(TierPower, NoWrongBytesIn200Rounds) {
  const char* fewer = std::getenv("KVSHM_TEST_ROUNDS");
  const int kRounds = fewer ? std::atoi(fewer) : kAllRounds;
  Seen seen;
  play(kRounds, 1, &seen);
  std::printf("slots read back %llu, right %llu, damaged %llu, wrong %llu; %llu sectors lost\n",
              (unsigned long long)seen.stored, (unsigned long long)seen.right,
              (unsigned long long)seen.damaged, (unsigned long long)seen.wrong,
              (unsigned long long)seen.lost_sectors);
  EXPECT_EQ(seen.wrong, 0u);
  EXPECT_GT(seen.right, std::uint64_t(kRounds));
  EXPECT_GT(seen.damaged, std::uint64_t(kRounds) / 10)
      << "the cuts did no harm: nothing was tested";
}

TEST(TierPower, WithoutChecksumsWrongBytesAreServed) {
  Seen seen;
  kvshm::tier::serve_unchecked = true;
  play(kControlRounds, 2, &seen);
  kvshm::tier::serve_unchecked = false;
  EXPECT_GT(seen.wrong, 0u);
}

}  // namespace
