// SPDX-License-Identifier: Apache-2.0
// Objects: many blocks under one key. What a single process sees of them.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "arena/arena.hpp"
#include "capi/call.hpp"
#include "index/index.hpp"
#include "objects_support.hpp"

using namespace kvshm_test;

namespace {

std::vector<kvshm_piece> pieces(const Object& o) {
  std::vector<kvshm_piece> p(64);
  const std::int64_t n = kvshm_object_pieces(o.get(), p.data(), p.size());
  EXPECT_TRUE(n >= 0 && n <= 64) << n;
  p.resize(std::size_t(n < 0 ? 0 : n));
  return p;
}

// Only every other block is free, until `held` is given back.
handles_t fragment(kvshm_arena* a, std::uint32_t n) {
  handles_t all = fill_blocks(a, n), odd, even;
  for (auto& h : all) (h.id % 2 ? odd : even).push_back(h);
  EXPECT_EQ(abort_fills(a, even), 0);
  return odd;
}

}  // namespace

TEST(Objects, RoundTripAtBlockBoundaries) {
  Pool pool({.blocks = 16, .block_bytes = kBlock});
  unsigned v = 0;
  for (std::uint64_t n : {std::uint64_t{1}, kBlock - 1, kBlock, kBlock + 1, 3 * kBlock - 1,
                          3 * kBlock, 3 * kBlock + 1, 16 * kBlock}) {
    const bytes_t bytes = content(n, ++v);
    const block_key key = key_of(100 + v);
    ASSERT_EQ(put(pool.a, bytes, key), 0) << n << ": " << kvshm_last_error();
    Object o = get(pool.a, key);
    ASSERT_TRUE(o) << n;
    EXPECT_EQ(kvshm_object_bytes(o.get()), n);
    EXPECT_EQ(read_all(o), bytes) << n;
    // Not one block more than it needs.
    EXPECT_EQ(stats(pool.a).blocks_held, (n + kBlock - 1) / kBlock) << n;
    o.reset();
    EXPECT_EQ(stats(pool.a).blocks_held, 0u);
    kvshm_clear(pool.a);
    EXPECT_EQ(broken(pool.a), "");
  }
}

TEST(Objects, OnePieceWhereBlocksAreFreeSideBySide) {
  Pool pool({.blocks = 16, .block_bytes = kBlock});
  const handles_t hole = fill_blocks(pool.a, 3);  // the run begins behind what is taken
  Object o;
  ASSERT_EQ(create(pool.a, 7 * kBlock + 5, &o), 0);
  auto* p = static_cast<unsigned char*>(kvshm_object_data(o.get()));
  ASSERT_NE(p, nullptr);
  const bytes_t bytes = content(7 * kBlock + 5);
  std::copy(bytes.begin(), bytes.end(), p);  // in place
  ASSERT_EQ(kvshm_object_commit(o.get()), 0);
  kvshm_arena* other = pool.another();
  Object seen = get(other);
  ASSERT_TRUE(seen);
  const auto* q = static_cast<const unsigned char*>(kvshm_object_data(seen.get()));
  ASSERT_NE(q, nullptr);
  EXPECT_NE(p, q);  // another mapping of the same memory
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), q));
  ASSERT_EQ(pieces(seen).size(), 1u);
  EXPECT_EQ(pieces(seen)[0].bytes, bytes.size());
  EXPECT_EQ(abort_fills(pool.a, hole), 0);
}

TEST(Objects, PiecesWhereTheArenaIsFragmented) {
  static_assert(sizeof(kvshm_piece) == sizeof(iovec) &&
                offsetof(kvshm_piece, data) == offsetof(iovec, iov_base) &&
                offsetof(kvshm_piece, bytes) == offsetof(iovec, iov_len));
  Pool pool({.blocks = 16, .block_bytes = kBlock});
  const handles_t held = fragment(pool.a, 16);
  const bytes_t bytes = content(4 * kBlock + 100);
  Object o;
  ASSERT_EQ(create(pool.a, bytes.size(), &o), 0);
  EXPECT_EQ(kvshm_object_data(o.get()), nullptr);
  std::vector<kvshm_piece> p = pieces(o);
  ASSERT_EQ(p.size(), 5u);
  EXPECT_EQ(kvshm_object_pieces(o.get(), p.data(), 2), 5);  // how many there are, not were stored
  EXPECT_EQ(kvshm_object_pieces(o.get(), nullptr, 0), 5);
  EXPECT_EQ(p[4].bytes, 100u);
  std::size_t at = 0;
  for (auto& one : p) {
    std::memcpy(one.data, bytes.data() + at, one.bytes);
    at += one.bytes;
  }
  EXPECT_EQ(at, bytes.size());
  ASSERT_EQ(kvshm_object_commit(o.get()), 0);
  EXPECT_EQ(read_all(get(pool.another())), bytes);
  // A read across a border takes from both sides.
  bytes_t part(20);
  ASSERT_EQ(kvshm_object_read(o.get(), kBlock - 10, part.data(), 20), 0);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + kBlock - 10));
  EXPECT_EQ(abort_fills(pool.a, held), 0);
}

TEST(Objects, ALongerRunBeforeTheFirstFreeBlocks) {
  Pool pool({.blocks = 12, .block_bytes = kBlock});
  const handles_t all = fill_blocks(pool.a, 12);
  handles_t freed;
  for (auto& h : all)
    if (h.id == 0 || h.id == 2 || (h.id >= 5 && h.id < 9)) freed.push_back(h);
  ASSERT_EQ(abort_fills(pool.a, freed), 0);
  Object o;
  ASSERT_EQ(create(pool.a, 4 * kBlock, &o), 0);
  EXPECT_EQ(kvshm_object_data(o.get()), kvshm_block_data(pool.a, 5));
}

// Who released it made the head the oldest of its blocks.
TEST(Objects, ItsHeadIsReleasedFirst) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(5 * kBlock)), 0);
  get(pool.a);
  std::uint32_t head = 0, oldest_part = ~0u;
  for (std::uint32_t id = 0; id < 8; id++) {
    const kvshm_block_info b = block(pool.a, id);
    if (b.state != KVSHM_READY) continue;
    if (std::memcmp(b.key, kKey.data(), 16) == 0)
      head = b.stamp;
    else
      oldest_part = std::min(oldest_part, b.stamp);
  }
  EXPECT_GT(head, 0u);
  EXPECT_LT(head, oldest_part);
}

TEST(Objects, NeighboursAreJoined) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  handles_t all = fill_blocks(pool.a, 8), kept;
  handles_t freed;
  for (auto& h : all) (h.id == 2 || h.id == 5 ? kept : freed).push_back(h);
  ASSERT_EQ(abort_fills(pool.a, freed), 0);  // 0 1 | 3 4 | 6 7
  Object o;
  ASSERT_EQ(create(pool.a, 6 * kBlock, &o), 0);
  std::vector<kvshm_piece> p = pieces(o);
  ASSERT_EQ(p.size(), 3u);
  for (auto& one : p) EXPECT_EQ(one.bytes, 2 * kBlock);
  EXPECT_EQ(abort_fills(pool.a, kept), 0);
}

TEST(Objects, Bounds) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  Object o;
  for (std::uint64_t n :
       {std::uint64_t{0}, 8 * kBlock + 1, ~std::uint64_t{0}, ~std::uint64_t{0} - kBlock + 2})
    EXPECT_EQ(create(pool.a, n, &o), n ? -KVSHM_ETOOLARGE : -EINVAL) << n;
  ASSERT_EQ(create(pool.a, 2 * kBlock + 10, &o), 0);
  char b[kBlock];
  const std::uint64_t end = 2 * kBlock + 10;
  EXPECT_EQ(kvshm_object_write(o.get(), end, b, 0), 0);
  EXPECT_EQ(kvshm_object_write(o.get(), end, nullptr, 0), 0);
  EXPECT_EQ(kvshm_object_write(o.get(), end, b, 1), -ERANGE);
  EXPECT_EQ(kvshm_object_write(o.get(), end - 1, b, 2), -ERANGE);
  EXPECT_EQ(kvshm_object_write(o.get(), end + 1, b, 0), -ERANGE);
  EXPECT_EQ(kvshm_object_write(o.get(), ~std::uint64_t{0}, b, 2), -ERANGE);
  EXPECT_EQ(kvshm_object_read(o.get(), 1, b, ~std::uint64_t{0}), -ERANGE);
  EXPECT_EQ(kvshm_object_read(o.get(), end - 1, b, 1), 0);
  // What lies behind the last byte, in the same block, is not the object's.
  std::vector<kvshm_piece> p = pieces(o);
  EXPECT_EQ(p.back().bytes % kBlock, 10u);
}

TEST(Objects, NullsAndNoKey) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  const std::uint8_t none[16] = {};
  kvshm_object* o = nullptr;
  EXPECT_EQ(kvshm_object_create(nullptr, kKey.data(), 10, nullptr, &o), -EINVAL);
  EXPECT_EQ(kvshm_object_create(pool.a, nullptr, 10, nullptr, &o), -EINVAL);
  EXPECT_EQ(kvshm_object_create(pool.a, none, 10, nullptr, &o), -EINVAL);
  EXPECT_EQ(kvshm_object_create(pool.a, kKey.data(), 10, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(kvshm_object_get(nullptr, kKey.data(), &o), -EINVAL);
  EXPECT_EQ(kvshm_object_get(pool.a, nullptr, &o), -EINVAL);
  EXPECT_EQ(kvshm_object_get(pool.a, none, &o), -EINVAL);
  EXPECT_EQ(kvshm_object_get(pool.a, kKey.data(), nullptr), -EINVAL);
  EXPECT_EQ(kvshm_object_commit(nullptr), -EINVAL);
  EXPECT_EQ(kvshm_object_bytes(nullptr), 0u);
  EXPECT_EQ(kvshm_object_data(nullptr), nullptr);
  EXPECT_EQ(kvshm_object_pieces(nullptr, nullptr, 0), -EINVAL);
  char b[4];
  EXPECT_EQ(kvshm_object_write(nullptr, 0, b, 1), -EINVAL);
  EXPECT_EQ(kvshm_object_read(nullptr, 0, b, 1), -EINVAL);
  kvshm_object_close(nullptr);
  Object own;
  ASSERT_EQ(create(pool.a, 10, &own), 0);
  EXPECT_EQ(kvshm_object_write(own.get(), 0, nullptr, 1), -EINVAL);
  EXPECT_EQ(kvshm_object_read(own.get(), 0, nullptr, 1), -EINVAL);
  EXPECT_EQ(kvshm_object_pieces(own.get(), nullptr, 1), -EINVAL);
  auto bad = sized<kvshm_fill_options>();
  bad.size = 8;
  EXPECT_EQ(create(pool.a, 10, &own, key_of(2), &bad), -EINVAL);
}

TEST(Objects, CommittedOnceAndThenNotWritten) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  Object o;
  ASSERT_EQ(create(pool.a, 3 * kBlock, &o), 0);
  EXPECT_EQ(kvshm_object_commit(o.get()), 0);
  EXPECT_EQ(kvshm_object_commit(o.get()), -KVSHM_ESTATE);
  EXPECT_EQ(kvshm_object_write(o.get(), 0, "x", 1), -KVSHM_ESTATE);
  Object got = get(pool.a);
  EXPECT_EQ(kvshm_object_commit(got.get()), -KVSHM_ESTATE);
  EXPECT_EQ(kvshm_object_write(got.get(), 0, "x", 1), -KVSHM_ESTATE);
}

TEST(Objects, ThereOnlyAfterCommit) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  kvshm_arena* other = pool.another();
  Object o, second;
  ASSERT_EQ(create(pool.a, 3 * kBlock, &o), 0);
  EXPECT_FALSE(get(pool.a));
  EXPECT_FALSE(get(other));
  EXPECT_EQ(create(other, 3 * kBlock, &second), -KVSHM_EPENDING);
  EXPECT_EQ(create(pool.a, 5, &second), -KVSHM_EPENDING);
  ASSERT_EQ(kvshm_object_commit(o.get()), 0);
  EXPECT_TRUE(get(other));
  EXPECT_EQ(create(other, 3 * kBlock, &second), -EEXIST);
  EXPECT_EQ(stats(pool.a).blocks_filling, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Objects, ClosedWithoutCommitItLeavesNoTrace) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  Object o;
  ASSERT_EQ(create(pool.a, 3 * kBlock, &o), 0);
  ASSERT_EQ(kvshm_object_write(o.get(), 0, content(3 * kBlock).data(), 3 * kBlock), 0);
  o.reset();
  EXPECT_FALSE(get(pool.a));
  EXPECT_EQ(stats(pool.a).blocks_free, 8u);
  EXPECT_EQ(own_stats(pool.a).registered_total, 0u);
  for (std::uint32_t id = 0; id < 8; id++) {
    const kvshm_block_info b = block(pool.a, id);
    EXPECT_EQ(std::count(b.key, b.key + 16, 0), 16);
  }
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(put(pool.a, content(8 * kBlock)), 0);  // and its key can be put again
}

TEST(Objects, WaitersAreToldThroughTheHead) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  Object o;
  ASSERT_EQ(create(pool.a, 3 * kBlock, &o), 0);
  kvshm_arena* other = pool.another();
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(other, kKey.data(), 0, &h), -KVSHM_EPENDING);
  EXPECT_EQ(kvshm_wait(other, h, 1), -ETIMEDOUT);
  // Who joins the head's fill cannot publish it: it was begun.
  ASSERT_EQ(kvshm_fill_join(other, h), 0);
  EXPECT_EQ(kvshm_fill_begin(other, h, 0), -KVSHM_EPART);
  EXPECT_EQ(kvshm_publish(other, h), -KVSHM_EPART);
  ASSERT_EQ(kvshm_abort(other, &h, 1), 0);
  std::thread committer([&] {
    usleep(20000);
    EXPECT_EQ(kvshm_object_commit(o.get()), 0);
  });
  EXPECT_EQ(kvshm_wait(other, h, 10000), 0);
  EXPECT_TRUE(get(other));
  committer.join();
}

TEST(Objects, AnOrdinaryBlockIsNoObject) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  make_cached(pool.a, kKey);
  EXPECT_FALSE(get(pool.a));
  EXPECT_TRUE(present(pool.a, kKey));  // and stays what it was
  Object o;
  EXPECT_EQ(create(pool.a, 2 * kBlock, &o), -EEXIST);
  // A block that was an object's head in a former life is an ordinary one in the next.
  kvshm_clear(pool.a);
  ASSERT_EQ(put(pool.a, content(8 * kBlock)), 0);
  kvshm_clear(pool.a);
  for (int i = 0; i < 8; i++) make_cached(pool.a, key_of(500 + i));
  for (int i = 0; i < 8; i++) EXPECT_FALSE(get(pool.a, key_of(500 + i)));
}

TEST(Objects, Options) {
  Pool pool({.blocks = 4, .block_bytes = kBlock});
  auto o = sized<kvshm_fill_options>();
  Object one;
  o.flags = KVSHM_NO_CACHE;
  ASSERT_EQ(create(pool.a, 2 * kBlock, &one, kKey, &o), 0);
  ASSERT_EQ(kvshm_object_commit(one.get()), 0);
  EXPECT_TRUE(get(pool.a));
  one.reset();
  EXPECT_FALSE(get(pool.a));
  EXPECT_EQ(stats(pool.a).blocks_free, 4u);

  o.flags = 0;
  o.priority = 100;  // never evicted
  ASSERT_EQ(create(pool.a, 3 * kBlock, &one, kKey, &o), 0);
  ASSERT_EQ(kvshm_object_commit(one.get()), 0);
  one.reset();
  Object other;
  EXPECT_EQ(create(pool.a, 2 * kBlock, &other, key_of(2)), -KVSHM_ENOSPACE);
  EXPECT_TRUE(get(pool.a));
  kvshm_clear(pool.a);

  ASSERT_EQ(put(pool.a, content(3 * kBlock)), 0);
  o.priority = 0;
  o.flags = KVSHM_NO_EVICT;
  EXPECT_EQ(create(pool.a, 2 * kBlock, &other, key_of(2), &o), -KVSHM_ENOSPACE);
  const handles_t all = fill_blocks(pool.a, 4);
  o.flags = 0;
  o.timeout_ms = 30;
  const std::int64_t start = now_ms();
  EXPECT_EQ(create(pool.a, 2 * kBlock, &other, key_of(2), &o), -ETIMEDOUT);
  EXPECT_GE(now_ms() - start, 29);
  EXPECT_EQ(abort_fills(pool.a, all), 0);
}

TEST(Objects, AnArenaWithoutData) {
  Pool pool({.blocks = 4, .block_bytes = 0});
  Object o;
  EXPECT_EQ(create(pool.a, 1, &o), -EINVAL);
}

TEST(Objects, OfAClosedOrRemovedArena) {
  const std::string name = fresh_name("objects");
  kvshm_arena* a = nullptr;
  const kvshm_options o = options({.blocks = 8, .block_bytes = kBlock});
  ASSERT_EQ(kvshm_create(&a, name.c_str(), &o), 0);
  ASSERT_EQ(put(a, content(3 * kBlock, 1)), 0);
  Object held = get(a), filling;
  ASSERT_EQ(create(a, 2 * kBlock, &filling, key_of(2)), 0);
  ASSERT_EQ(kvshm_remove(name.c_str(), nullptr, 1), 0);
  EXPECT_EQ(read_all(held), content(3 * kBlock, 1));  // what is held stays readable
  EXPECT_NE(kvshm_object_data(held.get()), nullptr);
  EXPECT_EQ(kvshm_object_write(filling.get(), 0, "x", 1), -ESTALE);
  EXPECT_EQ(kvshm_object_commit(filling.get()), -ESTALE);
  kvshm_object* none = nullptr;
  EXPECT_EQ(kvshm_object_get(a, kKey.data(), &none), -ESTALE);
  ASSERT_EQ(kvshm_close(a, 1000), 0);
  char b;
  EXPECT_EQ(kvshm_object_read(held.get(), 0, &b, 1), -KVSHM_ECLOSED);
  EXPECT_EQ(kvshm_object_data(held.get()), nullptr);
  EXPECT_EQ(kvshm_object_pieces(held.get(), nullptr, 0), -KVSHM_ECLOSED);
}

TEST(Objects, InAForkedChildTheyAreAbsent) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(3 * kBlock, 1)), 0);
  Object held = get(pool.a);
  Child child([&](Wire&) {
    char b;
    CHILD_CHECK(kvshm_object_data(held.get()) == nullptr);
    CHILD_CHECK(kvshm_object_read(held.get(), 0, &b, 1) == -KVSHM_EFORKED);
    held.reset();
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(read_all(held), content(3 * kBlock, 1));
  EXPECT_EQ(stats(pool.a).blocks_held, 3u);
}

// Sixteen blocks in the very places of its head's key: there is no room in the index.
TEST(Objects, AFullIndexRefusesIt) {
  Pool pool({.blocks = 64, .block_bytes = kBlock});
  kvshm::Arena& a = *pool.a->impl;
  const kvshm::Spot wanted = kvshm::spot_of(kvshm::Key::load(kKey.data()), a.nbuckets);
  std::mt19937_64 rng(5);
  handles_t crowd;
  for (int tries = 0; crowd.size() < 16 && tries < 1000000; tries++) {
    const kvshm::Key k = {rng(), rng()};
    const kvshm::Spot s = kvshm::spot_of(k, a.nbuckets);
    if (!(s.b1 == wanted.b1 && s.b2 == wanted.b2)) continue;
    block_key key;
    k.store(key.data());
    crowd.push_back(make_held(pool.a, key));
  }
  ASSERT_EQ(crowd.size(), 16u);
  Object o;
  EXPECT_EQ(create(pool.a, 3 * kBlock, &o), -KVSHM_ENOSPACE);
  EXPECT_STRNE(kvshm_last_error(), "");
  EXPECT_EQ(stats(pool.a).blocks_filling, 0u);
  EXPECT_EQ(broken(pool.a), "");
  for (auto& h : crowd) ASSERT_EQ(drop(pool.a, h), 0);
  kvshm_clear(pool.a);
  EXPECT_EQ(put(pool.a, content(3 * kBlock)), 0);
}

TEST(Objects, CopiesAreCounted) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(3 * kBlock + 1)), 0);
  const kvshm_stats before = own_stats(pool.a);
  EXPECT_EQ(before.copy_in_bytes_total, 3 * kBlock + 1);
  read_all(get(pool.a));
  const kvshm_stats after = own_stats(pool.a);
  EXPECT_EQ(after.copy_out_bytes_total - before.copy_out_bytes_total, 3 * kBlock + 1);
  EXPECT_EQ(after.hits_total - before.hits_total, 4u);
}
