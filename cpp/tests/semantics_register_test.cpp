// SPDX-License-Identifier: Apache-2.0
// Semantics 9-17: staging, registration, duplicates.
#include <cerrno>
#include <cstring>
#include <thread>

#include "support.hpp"

using namespace kvshm_test;

namespace {

// A second block for a key: filled, then registered with the policy. Returns its result.
std::uint8_t register_again(kvshm_arena* a, const block_key& key, int policy, kvshm_handle* mine,
                            kvshm_handle* out) {
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_QUIET;
  EXPECT_EQ(kvshm_allocate(a, 1, raw(key), &o, mine, nullptr, nullptr), 0);
  write_payload(a, mine->id, key);
  std::uint8_t result = 0;
  EXPECT_EQ(kvshm_register(a, mine, 1, nullptr, policy, out, &result), 1) << kvshm_last_error();
  return result;
}

kvshm_identity identity_of(std::uint32_t block_tokens, const char* model = "m") {
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  id.model = model;
  id.weights = "w";
  id.block_tokens = block_tokens;
  return id;
}

}  // namespace

// The core's form: bytes that do not fit the block are refused with both figures.
TEST(Semantics, S09_WrongSizeIsRefusedAndTheBlockStaysUsable) {
  Pool pool({.blocks = 2, .block_bytes = 256});
  const block_key key = key_of(1);
  kvshm_handle h;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), nullptr, &h, nullptr, nullptr), 0);
  std::vector<char> bytes(320, 'x');
  EXPECT_EQ(kvshm_copy_in(pool.a, h, 0, bytes.data(), 320), -ERANGE);
  EXPECT_NE(std::strstr(kvshm_last_error(), "320"), nullptr) << kvshm_last_error();
  EXPECT_NE(std::strstr(kvshm_last_error(), "256"), nullptr) << kvshm_last_error();
  EXPECT_EQ(kvshm_copy_in(pool.a, h, 255, bytes.data(), 2), -ERANGE);
  EXPECT_EQ(kvshm_copy_in(pool.a, h, ~0ull, bytes.data(), 2), -ERANGE);
  ASSERT_EQ(kvshm_copy_in(pool.a, h, 0, bytes.data(), 256), 0);
  kvshm_handle held;
  EXPECT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, &held, nullptr), 1);
  EXPECT_EQ(held.id, h.id);
  EXPECT_EQ(held.seq, h.seq);
  std::vector<char> back(256);
  EXPECT_EQ(kvshm_copy_out(pool.a, held, 0, back.data(), 256), 0);
  EXPECT_EQ(std::memcmp(back.data(), bytes.data(), 256), 0);
  EXPECT_EQ(drop(pool.a, held), 0);
}

TEST(Semantics, S10_SameTokensSameKeyAndId) {
  Pool pool({.blocks = 2});
  std::uint8_t secret[32], fingerprint[16];
  const kvshm_identity id = identity_of(4);
  ASSERT_EQ(kvshm_identity_derive(&id, secret, fingerprint), 0);
  const std::uint32_t tokens[4] = {1, 2, 3, 4};
  keys_t first(1), second(1);
  const handles_t h = fill_blocks(pool.a, 1);
  ASSERT_EQ(kvshm_keys_tokens(secret, nullptr, nullptr, tokens, 4, 4, raw(first), 1), 1);
  // Staged, reset, staged again: nothing of the first staging stays in the block.
  ASSERT_EQ(kvshm_keys_tokens(secret, nullptr, nullptr, tokens, 4, 4, raw(second), 1), 1);
  EXPECT_EQ(first, second);
  kvshm_handle held;
  EXPECT_EQ(kvshm_register(pool.a, h.data(), 1, raw(second), KVSHM_ALLOW, &held, nullptr), 1);
  EXPECT_EQ(held.id, h[0].id);
  EXPECT_TRUE(present(pool.a, first[0]));
  EXPECT_EQ(drop(pool.a, held), 0);
}

TEST(Semantics, S11_BlockSizes) {
  std::uint8_t secret[32], fingerprint[16];
  for (std::uint32_t n = 1; n <= 1024; n *= 2) {
    const kvshm_identity id = identity_of(n);
    EXPECT_EQ(kvshm_identity_derive(&id, secret, fingerprint), 0) << n;
  }
  for (std::uint32_t n : {0u, 3u, 2048u}) {
    const kvshm_identity id = identity_of(n);
    EXPECT_EQ(kvshm_identity_derive(&id, secret, fingerprint), -EINVAL) << n;
    kvshm_options o = options({});
    o.identity = &id;
    kvshm_arena* a = nullptr;
    const std::string name = fresh_name("size");
    EXPECT_EQ(kvshm_create(&a, name.c_str(), &o), -EINVAL) << n;
    EXPECT_EQ(a, nullptr);
    EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 1), -ENOENT) << "a refused arena stayed";
  }
}

TEST(Semantics, S12_AllowMakesADuplicate) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  const kvshm_handle primary = make_held(pool.a, key);
  kvshm_handle mine, out;
  EXPECT_EQ(register_again(pool.a, key, KVSHM_ALLOW, &mine, &out), KVSHM_ST_DUPLICATE);
  EXPECT_EQ(out.id, mine.id);
  EXPECT_NE(out.id, primary.id);
  EXPECT_EQ(stats(pool.a).duplicates_total, 1u);
  EXPECT_EQ(broken(pool.a), "");
  const std::uint64_t free_before = stats(pool.a).blocks_free;
  EXPECT_EQ(drop(pool.a, out), 0);  // its slot is free at once
  EXPECT_EQ(stats(pool.a).blocks_free, free_before + 1);
  std::uint32_t id;
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(key), 1, &id, &lease), 1);
  EXPECT_EQ(id, primary.id);
  EXPECT_TRUE(payload_right(pool.a, id, key));
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(drop(pool.a, primary), 0);
  EXPECT_EQ(block(pool.a, primary.id).own_holds, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S13_RejectReturnsThePresentBlock) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  const kvshm_handle primary = make_held(pool.a, key);
  const std::uint64_t before = available(pool.a);
  kvshm_handle mine, out;
  EXPECT_EQ(register_again(pool.a, key, KVSHM_REJECT, &mine, &out), KVSHM_ST_PRESENT);
  EXPECT_EQ(out.id, primary.id);
  EXPECT_EQ(out.seq, primary.seq);
  EXPECT_EQ(available(pool.a), before);
  EXPECT_EQ(block(pool.a, mine.id).state, unsigned(KVSHM_FREE));
  EXPECT_EQ(stats(pool.a).rejected_total, 1u);
  EXPECT_EQ(block(pool.a, primary.id).own_holds, 2u);
  EXPECT_EQ(drop(pool.a, out), 0);
  EXPECT_EQ(drop(pool.a, primary), 0);
  EXPECT_EQ(drop(pool.a, primary), -KVSHM_ENOTMINE);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S14_ALivingDuplicateKeepsThePrimary) {
  Pool pool({.blocks = 2});
  const block_key key = key_of(1);
  const kvshm_handle primary = make_held(pool.a, key);
  kvshm_handle mine, out;
  ASSERT_EQ(register_again(pool.a, key, KVSHM_ALLOW, &mine, &out), KVSHM_ST_DUPLICATE);
  EXPECT_EQ(drop(pool.a, primary), 0);
  kvshm_handle h;
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &h, nullptr, nullptr), -KVSHM_ENOSPACE);
  EXPECT_EQ(kvshm_evict(pool.a, raw(key), 1), 0);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 0u);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(drop(pool.a, out), 0);  // gives both back
  EXPECT_EQ(stats(pool.a).blocks_inactive, 1u);
  EXPECT_EQ(stats(pool.a).blocks_free, 1u);
  EXPECT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S15_BatchKeepsOrderAndEqualKeysAreDuplicates) {
  Pool pool({.blocks = 8});
  keys_t keys = keys_of(0, 4);
  keys[2] = keys[0];  // 0 1 0 3
  for (int policy : {KVSHM_ALLOW, KVSHM_REJECT}) {
    kvshm_clear(pool.a);
    handles_t h = fill_blocks(pool.a, 4), out(4);
    for (int i = 0; i < 4; i++) write_payload(pool.a, h[i].id, keys[i]);
    std::uint8_t results[4];
    ASSERT_EQ(kvshm_register(pool.a, h.data(), 4, raw(keys), policy, out.data(), results), 4);
    EXPECT_EQ(out[0].id, h[0].id);
    EXPECT_EQ(out[1].id, h[1].id);
    EXPECT_EQ(out[3].id, h[3].id);
    EXPECT_EQ(results[0], KVSHM_ST_PRIMARY);
    EXPECT_EQ(results[1], KVSHM_ST_PRIMARY);
    EXPECT_EQ(results[3], KVSHM_ST_PRIMARY);
    if (policy == KVSHM_ALLOW) {
      EXPECT_EQ(results[2], KVSHM_ST_DUPLICATE);
      EXPECT_EQ(out[2].id, h[2].id);
    } else {
      EXPECT_EQ(results[2], KVSHM_ST_PRESENT);
      EXPECT_EQ(out[2].id, h[0].id);
    }
    EXPECT_EQ(broken(pool.a), "");
    EXPECT_EQ(kvshm_drop(pool.a, out.data(), 4), 0);
    EXPECT_EQ(stats(pool.a).blocks_inactive, 3u);
    EXPECT_EQ(broken(pool.a), "");
  }
}

TEST(Semantics, S16_RegisteringACachedKeyHoldsTheCachedBlock) {
  Pool pool({.blocks = 2});
  const block_key key = key_of(1);
  make_cached(pool.a, key);
  kvshm_handle mine, out;
  ASSERT_EQ(register_again(pool.a, key, KVSHM_REJECT, &mine, &out), KVSHM_ST_PRESENT);
  EXPECT_NE(out.id, mine.id);
  EXPECT_TRUE(payload_right(pool.a, out.id, key));
  EXPECT_EQ(drop(pool.a, out), 0);
  ASSERT_EQ(register_again(pool.a, key, KVSHM_ALLOW, &mine, &out), KVSHM_ST_DUPLICATE);
  const kvshm_block_info b = block(pool.a, out.id);
  EXPECT_EQ(block(pool.a, b.primary).own_holds, 1u);  // pinned beside it
  kvshm_handle h;
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &h, nullptr, nullptr), -KVSHM_ENOSPACE);
  EXPECT_EQ(stats(pool.a).evicted_total, 0u);
  EXPECT_EQ(drop(pool.a, out), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S17_TwoProcessesRegisterAtOnce) {
  Pool pool({.blocks = 16, .block_bytes = 4096});
  constexpr int kRounds = 200;
  for (int policy : {KVSHM_ALLOW, KVSHM_REJECT}) {
    std::vector<Child> children;
    for (int p = 0; p < 2; p++)
      children.emplace_back([&](Wire& parent) {
        kvshm_arena* a = attach(pool.name);
        CHILD_CHECK(a);
        for (int round = 0; round < kRounds; round++) {
          const block_key key = key_of(round);
          kvshm_handle h;
          auto o = sized<kvshm_fill_options>();
          o.flags = KVSHM_QUIET;
          CHILD_CHECK(kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr) == 0);
          write_payload(a, h.id, key);
          parent.tell();
          CHILD_CHECK(parent.listen());  // both are ready: now
          std::uint8_t result;
          CHILD_CHECK(kvshm_register(a, &h, 1, nullptr, policy, &h, &result) == 1);
          CHILD_CHECK(payload_right(a, h.id, key));
          parent.tell(result == KVSHM_ST_PRIMARY ? 'p' : 'd');
          CHILD_CHECK(parent.listen());
          CHILD_CHECK(drop(a, h) == 0);
        }
        CHILD_CHECK(kvshm_close(a, 1000) == 0);
        return 0;
      });
    for (int round = 0; round < kRounds; round++) {
      for (auto& c : children) ASSERT_TRUE(c.listen());
      for (auto& c : children) c.tell();
      int primaries = 0;
      for (auto& c : children) primaries += c.listen() == 'p';
      ASSERT_EQ(primaries, 1) << "round " << round;
      ASSERT_TRUE(present(pool.a, key_of(round)));
      if (round % 20 == 0) {
        ASSERT_EQ(broken(pool.a), "") << "round " << round;
      }
      for (auto& c : children) c.tell();
    }
    for (auto& c : children) EXPECT_EQ(c.wait(), 0);
    EXPECT_EQ(broken(pool.a), "");
    EXPECT_EQ(wrong_payloads(pool.a), "");
    kvshm_clear(pool.a);
  }
}
