// SPDX-License-Identifier: Apache-2.0
#include "scene.hpp"

#include <unistd.h>

#include <cstring>

#include "capi/call.hpp"
#include "index/index.hpp"

namespace kvshm_sweep {
namespace {
constexpr std::uint32_t kWaiting = 1;  // bit 0 of an eventcount: somebody sleeps on it

bool others_alive(kvshm_arena* a) {
  for (std::uint32_t s = 0; s < kvshm::kSlots; s++) {
    auto p = sized<kvshm_process>();
    EXPECT_EQ(kvshm_get_process(a, s, &p), 0);
    if (p.used && p.alive && !p.self) return true;
  }
  return false;
}
}  // namespace

kvshm::Arena& core(kvshm_arena* a) { return *a->impl; }

Scene::Scene() : spare(fresh_name("spare")) {
  kvshm_handle up = {0, KVSHM_NONE, 0};
  handles_t chain;
  for (auto& k : cached) chain.push_back(up = make_held(a, k, up));
  EXPECT_EQ(kvshm_drop(a, chain.data(), 4), 0);
  held = make_held(a, held_key);
  auto o = sized<kvshm_fill_options>();
  o.parts = 2;
  EXPECT_EQ(kvshm_allocate(a, 1, raw(fill_key), &o, &fill, nullptr, nullptr), 0);
  EXPECT_EQ(kvshm_fill_begin(a, fill, 0), 0);
  write_half(a, fill.id, fill_key, 0);
  EXPECT_EQ(kvshm_fill_arrive(a, fill, 0), 0);
  EXPECT_EQ(kvshm_allocate(a, 1, raw(mine_key), nullptr, &mine, nullptr, nullptr), 0);
  // As if somebody slept: whoever changes something must wake.
  core(a).sb->space.fetch_or(kWaiting);
  core(a).hot[fill.id].fut.fetch_or(kWaiting);
}

Scene::~Scene() {
  close_second();
  kvshm_remove(spare.c_str(), nullptr, 1);
}

void Scene::clear_up(bool by_next_owner) {
  // A child of the dead dies with it, a little later.
  for (int i = 0; i < 5000 && others_alive(a); i++) usleep(1000);
  for (unsigned s = 0; s < kvshm::kSlots; s++) {  // a drain has come to its end
    auto& until = core(a).slots[s].drain_until;
    if (until.load()) until = 1;
    core(a).slots[s].device_memory = 0;
  }
  if (by_next_owner) {
    kvshm_arena* next = attach(pool.name);
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(kvshm_reap(next, nullptr), 0);
    EXPECT_EQ(broken(next), "") << "before the next owner of the slot uses it";
    kvshm_handle h;
    EXPECT_EQ(kvshm_acquire(next, held_key.data(), 0, &h), 0);
    EXPECT_EQ(drop(next, h), 0);
    // Its own fills come and go in what was the dead one's slot.
    if (kvshm_allocate(next, 1, nullptr, nullptr, &h, nullptr, nullptr) == 0) {
      EXPECT_EQ(kvshm_abort(next, &h, 1), 0);
    }
    EXPECT_EQ(kvshm_close(next, 1000), 0);
  }
  EXPECT_EQ(kvshm_reap(a, nullptr), 0);
}

kvshm_arena* Scene::second() {
  if (!second_) second_ = attach(pool.name);
  EXPECT_NE(second_, nullptr);
  return second_;
}

void Scene::close_second() {
  if (second_) {
    EXPECT_EQ(kvshm_close(second_, 1000), 0);
  }
  second_ = nullptr;
}

void Scene::check(unsigned may_go) {
  ASSERT_EQ(broken(a), "");
  ASSERT_EQ(wrong_payloads(a), "");
  ASSERT_EQ(unfindable(a), "");
  ASSERT_TRUE(summary_whole(a));
  ASSERT_FALSE(any_tentative(a));
  ASSERT_EQ(stats(a).slots_used, 1u);
  ASSERT_EQ(block(a, held.id).own_holds, 1u);
  ASSERT_EQ(block(a, held.id).holders, std::uint64_t{1} << core(a).slot);
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(a, held_key.data(), 0, &h), 0);
  ASSERT_EQ(h.id, held.id);
  ASSERT_EQ(drop(a, h), 0);
  for (unsigned i = 0; i < cached.size(); i++) {
    const int rc = kvshm_acquire(a, cached[i].data(), 0, &h);
    if (rc == -ENOENT && (may_go >> i & 1)) continue;
    ASSERT_EQ(rc, 0) << "cached block " << i;
    ASSERT_EQ(drop(a, h), 0);
  }
  if (!mine_given_up) {
    ASSERT_EQ(block(a, mine.id).seq, mine.seq);
    ASSERT_EQ(block(a, mine.id).state, unsigned(KVSHM_FILLING));
    ASSERT_EQ(kvshm_abort(a, &mine, 1), 0);
  }
  finish_fill();
  ASSERT_EQ(drop(a, held), 0);
  all_blocks_usable();
}

// The shared fill is the survivor's all the while; another member may have written its slice, or
// have begun it: then nobody else may.
void Scene::finish_fill() {
  const kvshm_block_info b = block(a, fill.id);
  ASSERT_EQ(b.seq, fill.seq);
  ASSERT_EQ(b.own_holds, 1u);
  if (b.state == KVSHM_FILLING && b.arrived != 3) {
    ASSERT_EQ(kvshm_publish(a, fill), -KVSHM_EPART);
    const bool begun = b.begun & 2;
    ASSERT_EQ(kvshm_fill_begin(a, fill, 1), begun ? -KVSHM_EPART : 0);
    if (begun) {
      ASSERT_EQ(kvshm_abort(a, &fill, 1), 0);
      ASSERT_FALSE(present(a, fill_key));
      return;
    }
    write_half(a, fill.id, fill_key, 1);
    ASSERT_EQ(kvshm_fill_arrive(a, fill, 1), 0);
  }
  ASSERT_EQ(kvshm_publish(a, fill), 0);
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(a, fill_key.data(), 0, &h), 0);
  ASSERT_EQ(h.id, fill.id);
  ASSERT_TRUE(payload_right(a, h.id, fill_key));
  ASSERT_EQ(drop(a, h), 0);
  ASSERT_EQ(drop(a, fill), 0);
}

// Everything can be had again, is found under new keys, and nothing is left over.
void Scene::all_blocks_usable() {
  std::uint64_t total = 0, free = 0;
  ASSERT_EQ(kvshm_reset_inactive(a, &total, &free), 0) << free << " of " << total << " free";
  const keys_t keys = keys_of(5000, kBlocks);
  handles_t h(kBlocks);
  ASSERT_EQ(kvshm_allocate(a, kBlocks, raw(keys), nullptr, h.data(), nullptr, nullptr), 0);
  for (std::uint32_t i = 0; i < kBlocks; i++) write_payload(a, h[i].id, keys[i]);
  std::vector<std::uint8_t> results(kBlocks);
  ASSERT_EQ(kvshm_register(a, h.data(), kBlocks, nullptr, KVSHM_ALLOW, h.data(), results.data()),
            std::int64_t(kBlocks));
  for (std::uint32_t i = 0; i < kBlocks; i++) {
    if (results[i] != KVSHM_ST_PRIMARY) continue;  // its two buckets were full
    kvshm_handle found;
    ASSERT_EQ(kvshm_acquire(a, keys[i].data(), 0, &found), 0);
    ASSERT_TRUE(payload_right(a, found.id, keys[i]));
    ASSERT_EQ(drop(a, found), 0);
  }
  ASSERT_EQ(kvshm_drop(a, h.data(), kBlocks), 0);
  ASSERT_EQ(kvshm_reset_inactive(a, &total, &free), 0) << free << " of " << total << " free";
  ASSERT_EQ(broken(a), "");
}

void Scene::open_spare() {
  const kvshm_options o = options({.blocks = 8, .block_bytes = 64});
  kvshm_arena* other = nullptr;
  ASSERT_EQ(kvshm_open(&other, spare.c_str(), &o), 0) << kvshm_last_error();
  make_cached(other, key_of(1));
  EXPECT_EQ(kvshm_reap(other, nullptr), 0);
  EXPECT_EQ(broken(other), "");
  EXPECT_EQ(stats(other).blocks_total, 8u);
  EXPECT_EQ(stats(other).slots_used, 1u);
  EXPECT_EQ(kvshm_close(other, 1000), 0);
  EXPECT_EQ(kvshm_remove(spare.c_str(), nullptr, 0), 0) << kvshm_last_error();
}

void write_half(kvshm_arena* a, std::uint32_t id, const block_key& key, unsigned half) {
  auto* p = static_cast<std::uint8_t*>(kvshm_block_data(a, id));
  std::uint8_t other[kBytes / 2];  // write_payload writes all: put the other half back
  const unsigned keep = half ? 0 : kBytes / 2;
  std::memcpy(other, p + keep, sizeof other);
  write_payload(a, id, key);
  std::memcpy(p + keep, other, sizeof other);
}

int right_bytes(kvshm_arena* a, std::uint32_t id, const block_key& key) {
  return payload_right(a, id, key) ? 0 : kWrong;
}

bool summary_whole(kvshm_arena* a) {
  kvshm::Arena& c = core(a);
  for (std::uint32_t id = 0; id < c.nblocks; id++) {
    const std::uint32_t r = id / kvshm::kRegionBlocks;
    if ((c.free_map[id / 64] >> (id % 64) & 1) && !(c.summary[r / 64] >> (r % 64) & 1))
      return false;
  }
  return true;
}

bool any_tentative(kvshm_arena* a) {
  kvshm::Arena& c = core(a);
  for (std::uint64_t i = 0; i < c.nbuckets * kvshm::kIndexWays; i++)
    if (c.index[i] & kvshm::entry::kTentative) return true;
  return false;
}

int put(kvshm_arena* a, const block_key& key, int policy, std::uint32_t flags,
        kvshm_handle parent) {
  kvshm_handle h;
  auto o = sized<kvshm_fill_options>();
  o.flags = flags;
  o.parent = parent;
  if (int rc = kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr)) return -rc;
  write_payload(a, h.id, key);
  if (kvshm_register(a, &h, 1, nullptr, policy, &h, nullptr) != 1) return 2;
  if (int rc = right_bytes(a, h.id, key)) return rc;
  return kvshm_drop(a, &h, 1) ? 3 : 0;
}

std::vector<Op> all_ops() {
  std::vector<Op> all;
  for (auto& some :
       {fill_ops(), hold_ops(), object_ops(), life_ops(), reap_ops(), tenant_ops(), control_ops()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

const Op& op_named(const std::string& name) {
  static const std::vector<Op> all = all_ops();
  for (const Op& op : all)
    if (op.name == name) return op;
  throw std::runtime_error("no operation " + name);
}

}  // namespace kvshm_sweep
