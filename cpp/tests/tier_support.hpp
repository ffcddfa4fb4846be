// SPDX-License-Identifier: Apache-2.0
// What the tests of the tier share: a file of their own, and blocks that went down and come up.
#pragma once
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "support.hpp"

namespace kvshm_test {

// A file that goes with the test, on a real file system: tmpfs has no O_DIRECT.
class TierFile {
 public:
  explicit TierFile(const char* what) {
    const char* dir = std::getenv("KVSHM_TEST_DISK");
    path = std::string(dir ? dir : "/var/tmp") + "/" + fresh_name(what) + ".kvtier";
    unlink(path.c_str());
  }
  TierFile(const TierFile&) = delete;
  ~TierFile() { unlink(path.c_str()); }
  std::string path;
};

struct TierSpec {
  std::uint64_t bytes = 4 << 20;
  std::uint32_t engine = KVSHM_TIER_AUTO, direct = KVSHM_AUTO, sync = 0, admit = 0, queue = 0,
                deadline_ms = 0, write = KVSHM_TIER_WRITE_THROUGH, mover = KVSHM_AUTO, age_ms = 0,
                low = 0, min_prefix = 0, min_priority = 0, stores = 0;
  std::uint64_t gather = 0;
};
inline kvshm_tier tier_of(kvshm_arena* a) {
  auto t = sized<kvshm_tier>();
  EXPECT_EQ(kvshm_get_tier(a, &t), 0) << kvshm_last_error();
  return t;
}
// What runs where calls are refused (kvshm_refuse), and that the cause is said.
inline void expect_engine(kvshm_arena* a, const TierSpec& s) {
  const char *engine = std::getenv("KVSHM_TEST_ENGINE"), *why = std::getenv("KVSHM_TEST_WHY");
  const kvshm_tier t = tier_of(a);
  if (engine && *engine && s.engine == KVSHM_TIER_AUTO) {
    EXPECT_STREQ(kvshm_tier_engine_name(t.engine), engine);
  }
  if (why && *why && s.engine == KVSHM_TIER_AUTO && s.direct == KVSHM_AUTO) {
    const std::string said = t.why, off = "sysctl kernel.io_uring_disabled = 2";
    // Another test may have it so for a while: then it is the cause.
    EXPECT_TRUE(said.find(why) != said.npos || said.find(off) != said.npos)
        << said << " does not say " << why;
  }
}
inline int open_tier(kvshm_arena* a, const std::string& path, const TierSpec& s = {}) {
  kvshm_tier_options o = KVSHM_TIER_OPTIONS_INIT;
  const char* paths[] = {path.c_str()};
  o.paths = paths;
  o.npaths = 1;
  o.bytes = s.bytes;
  o.engine = s.engine;
  o.direct = s.direct;
  o.sync = s.sync;
  o.admit = s.admit;
  o.queue = s.queue;
  o.deadline_ms = s.deadline_ms;
  o.write = s.write;
  o.mover = s.mover;
  o.age_ms = s.age_ms;
  o.low = s.low;
  o.min_prefix = s.min_prefix;
  o.min_priority = s.min_priority;
  o.gather = s.gather;
  o.stores = s.stores;
  const int rc = kvshm_tier_open(a, &o);
  if (rc == 0) expect_engine(a, s);
  return rc;
}
inline bool await_tier(kvshm_arena* a, std::uint32_t state = KVSHM_TIER_OK, int ms = 10000) {
  for (const std::int64_t end = now_ms() + ms; now_ms() < end; usleep(2000))
    if (tier_of(a).state == state) return true;
  return false;
}

// The image is an arena, and is looked at as one.
inline std::string broken_image(kvshm_arena* a) {
  kvshm_arena* image = attach(tier_of(a).image);
  if (!image) return "no image";
  kvshm_reap(image, nullptr);  // a mover would, within half a second
  const std::string text = broken(image);
  kvshm_close(image, 1000);
  return text;
}

// All processes of the arena end, and shared memory forgets the slots.
inline void reboot(Pool& pool) {
  const std::string image = tier_of(pool.a).image;
  pool.leave();
  ASSERT_EQ(kvshm_remove(image.c_str(), nullptr, 0), 0) << kvshm_last_error();
}

// A chain of blocks, registered head first and given back.
inline void cache_chain(kvshm_arena* a, const keys_t& keys) {
  handles_t h(keys.size());
  ASSERT_EQ(
      kvshm_allocate(a, std::uint32_t(keys.size()), raw(keys), nullptr, h.data(), nullptr, nullptr),
      0)
      << kvshm_last_error();
  for (std::size_t i = 0; i < keys.size(); i++) write_payload(a, h[i].id, keys[i]);
  ASSERT_EQ(
      kvshm_register(a, h.data(), std::uint32_t(h.size()), nullptr, KVSHM_ALLOW, h.data(), nullptr),
      std::int64_t(h.size()))
      << kvshm_last_error();
  ASSERT_EQ(kvshm_drop(a, h.data(), std::uint32_t(h.size())), 0);
}

// By a handle that leaves again, so that another one moves from now on.
inline void store_and_leave(Pool& pool, const std::string& path, const TierSpec& s,
                            const keys_t& keys) {
  kvshm_arena* a = pool.another();
  ASSERT_EQ(open_tier(a, path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(a));
  cache_chain(a, keys);
  ASSERT_EQ(kvshm_tier_drain(a, 20000), 0);
  ASSERT_EQ(kvshm_close(a, 10000), 0);
}

struct Loaded {
  std::int64_t promised = 0, held = 0;
  std::uint32_t right = 0, failed = 0;
};
// Looks the chain up in both tiers, waits, compares all payloads, gives back.
inline Loaded load_chain(kvshm_arena* a, const keys_t& keys, std::uint32_t timeout_ms = 20000) {
  Loaded r;
  kvshm_load* load = nullptr;
  r.promised = kvshm_match_load(a, raw(keys), std::uint32_t(keys.size()), 0, 0, &load, nullptr);
  if (r.promised <= 0) return r;
  EXPECT_EQ(kvshm_load_wait(load, timeout_ms), 0) << kvshm_last_error();
  std::vector<std::uint8_t> status(keys.size());
  std::vector<std::uint32_t> ids(keys.size(), KVSHM_NONE);
  r.held = kvshm_load_status(load, status.data(), ids.data());
  for (std::int64_t i = 0; i < r.promised; i++) {
    r.failed += status[i] == KVSHM_LD_FAILED;
    if (ids[i] != KVSHM_NONE) r.right += payload_right(a, ids[i], keys[i]);
  }
  kvshm_load_free(load);
  return r;
}

}  // namespace kvshm_test
