// SPDX-License-Identifier: Apache-2.0
// Semantics 49-52: between processes.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "arena/layout.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

kvshm_identity model(const char* name, const char* space = nullptr) {
  auto id = sized<kvshm_identity>();
  id.model = name;
  id.weights = "w";
  id.space = space;
  id.block_tokens = 16;
  return id;
}

}  // namespace

TEST(Semantics, S49_ABlockOutlivesTheProcessThatMadeIt) {
  Pool pool({.blocks = 8, .block_bytes = 4096});
  const keys_t keys = keys_of(0, 3);
  Child maker([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    kvshm_handle parent = {0, KVSHM_NONE, 0};
    for (auto& k : keys) {
      parent = make_held(a, k, parent);
      CHILD_CHECK(parent.seq);
    }
    CHILD_CHECK(kvshm_close(a, 1000) == 0);
    return 0;
  });
  ASSERT_EQ(maker.wait(), 0);
  std::uint32_t ids[3];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 3, ids, &lease), 3);
  for (int i = 0; i < 3; i++) EXPECT_TRUE(payload_right(pool.a, ids[i], keys[i]));
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S49_AKilledHoldersHoldsComeBack) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  const kvshm_handle mine = make_held(pool.a, key);
  Child holder([&](Wire& parent) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    kvshm_handle h;
    CHILD_CHECK(kvshm_acquire(a, key.data(), 0, &h) == 0);
    make_held(a, key_of(2));
    parent.tell();
    parent.listen();
    return 0;
  });
  ASSERT_TRUE(holder.listen());
  EXPECT_EQ(stats(pool.a).blocks_held, 2u);
  holder.kill();
  auto report = sized<kvshm_reap_report>();
  ASSERT_EQ(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(report.slots_dead, 1u);
  EXPECT_EQ(report.slots_cleared, 1u);
  EXPECT_EQ(report.holds, 2u);
  EXPECT_EQ(stats(pool.a).blocks_held, 1u);  // mine stays
  EXPECT_EQ(block(pool.a, mine.id).own_holds, 1u);
  EXPECT_EQ(stats(pool.a).slots_used, 1u);
  EXPECT_TRUE(present(pool.a, key_of(2)));
  EXPECT_EQ(drop(pool.a, mine), 0);
  EXPECT_EQ(wrong_payloads(pool.a), "");
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S49_AHalfWrittenBlockIsNeverVisible) {
  Pool pool({.blocks = 4, .block_bytes = 1 << 16});
  const block_key key = key_of(1);
  Child writer([&](Wire& parent) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    kvshm_handle h;
    CHILD_CHECK(kvshm_allocate(a, 1, raw(key), nullptr, &h, nullptr, nullptr) == 0);
    auto* p = static_cast<volatile char*>(kvshm_block_data(a, h.id));
    for (int i = 0; i < 1 << 15; i++) p[i] = 'x';
    parent.tell();
    for (;;) p[1 << 15] = 'y';  // in the middle of it
    return 0;
  });
  ASSERT_TRUE(writer.listen());
  kvshm_handle h;
  EXPECT_EQ(kvshm_acquire(pool.a, key.data(), 0, &h), -KVSHM_EPENDING);
  writer.kill();
  const std::int64_t from = now_ms();
  EXPECT_EQ(kvshm_wait(pool.a, h, 5000), -ENOENT);  // reaps by itself
  EXPECT_LT(now_ms() - from, 1500);
  EXPECT_EQ(kvshm_acquire(pool.a, key.data(), 0, &h), -ENOENT);
  EXPECT_EQ(stats(pool.a).blocks_free, 4u);
  EXPECT_EQ(stats(pool.a).reaped_fills_total, 1u);
  EXPECT_EQ(broken(pool.a), "");
}

// With the helper thread nobody has to ask.
TEST(Semantics, S49_WithinABoundedTimeByItself) {
  Pool pool({.blocks = 4});
  kvshm_arena* watcher = attach(pool.name, 0);
  ASSERT_NE(watcher, nullptr);
  Child holder([&](Wire& parent) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    make_held(a, key_of(1));
    fill_blocks(a, 2);
    parent.tell();
    parent.listen();
    return 0;
  });
  ASSERT_TRUE(holder.listen());
  holder.kill();
  const std::int64_t from = now_ms();
  while (stats(pool.a).blocks_free != 3 && now_ms() - from < 5000) usleep(10000);
  EXPECT_EQ(stats(pool.a).blocks_free, 3u);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 1u);
  EXPECT_LT(now_ms() - from, 2000);
  EXPECT_EQ(kvshm_close(watcher, 2000), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S50_AnotherIdentityOrGeometryIsRefused) {
  const std::string name = fresh_name("id");
  const kvshm_identity llama = model("llama"), other = model("other"),
                       space = model("llama", "tenant-b");
  kvshm_options o = options({});
  o.identity = &llama;
  kvshm_arena *a = nullptr, *b = nullptr;
  ASSERT_EQ(kvshm_create(&a, name.c_str(), &o), 0) << kvshm_last_error();
  make_cached(a, key_of(1));
  const kvshm_stats before = stats(a);
  for (const kvshm_identity* wrong : {&other, &space}) {
    o.identity = wrong;
    EXPECT_EQ(kvshm_open(&b, name.c_str(), &o), -KVSHM_EIDENTITY);
    EXPECT_EQ(b, nullptr);
    EXPECT_NE(std::string(kvshm_last_error()).find("llama"), std::string::npos);
  }
  o.identity = &llama;
  o.block_bytes = 512;
  EXPECT_EQ(kvshm_attach(&b, name.c_str(), &o), -KVSHM_EGEOMETRY);
  EXPECT_NE(std::string(kvshm_last_error()).find("512"), std::string::npos);
  o.block_bytes = 256;
  EXPECT_EQ(kvshm_attach(&b, name.c_str(), &o), 0) << kvshm_last_error();
  EXPECT_EQ(kvshm_close(b, 1000), 0);
  kvshm_stats after = stats(a);
  EXPECT_EQ(after.foreign_attaches_total, before.foreign_attaches_total + 2) << "and that is told";
  after.foreign_attaches_total = before.foreign_attaches_total;
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0) << "a refused attach left traces";
  EXPECT_TRUE(present(a, key_of(1)));
  EXPECT_EQ(broken(a), "");
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 0), 0);
}

TEST(Semantics, S50_AnotherLayoutIsRefused) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  const int fd = open(("/dev/shm/kvshm." + pool.name).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const struct {
    off_t at;
    std::size_t size;
    int want;
  } fields[] = {{offsetof(kvshm::Superblock, layout_version), 4, -KVSHM_ELAYOUT},
                {offsetof(kvshm::Superblock, layout_hash), 8, -KVSHM_ELAYOUT},
                {offsetof(kvshm::Superblock, magic), 8, -KVSHM_ELAYOUT},
                {offsetof(kvshm::Superblock, geometry), 8, -EBADMSG}};
  for (const auto& f : fields) {
    std::uint64_t was = 0, now;
    ASSERT_EQ(pread(fd, &was, f.size, f.at), ssize_t(f.size));
    now = was + 1;
    ASSERT_EQ(pwrite(fd, &now, f.size, f.at), ssize_t(f.size));
    kvshm_arena* b = nullptr;
    EXPECT_EQ(kvshm_attach(&b, pool.name.c_str(), nullptr), f.want) << "field at " << f.at;
    EXPECT_STRNE(kvshm_last_error(), "");
    ASSERT_EQ(pwrite(fd, &was, f.size, f.at), ssize_t(f.size));
  }
  close(fd);
  EXPECT_EQ(stats(pool.a).slots_used, 1u);
  EXPECT_TRUE(present(pool.a, key_of(1)));
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S50_ADifferentSaltAdapterOrModelMisses) {
  Pool pool;
  std::vector<std::uint32_t> tokens(16, 7);
  auto key_for = [&](const char* name, std::uint32_t extra_type, const char* extra_text) {
    const kvshm_identity id = model(name);
    std::uint8_t secret[32], fingerprint[16], extra[16];
    const kvshm_extra item = {extra_type, std::uint32_t(std::strlen(extra_text)), extra_text};
    EXPECT_EQ(kvshm_identity_derive(&id, secret, fingerprint), 0);
    EXPECT_EQ(kvshm_extra_digest(secret, &item, extra_type ? 1 : 0, extra), 0);
    keys_t k(1);
    EXPECT_EQ(kvshm_keys_tokens(secret, extra, nullptr, tokens.data(), 16, 16, raw(k), 1), 1);
    return k[0];
  };
  make_cached(pool.a, key_for("llama", 0, ""));
  EXPECT_TRUE(present(pool.a, key_for("llama", 0, "")));
  EXPECT_FALSE(present(pool.a, key_for("other", 0, "")));
  EXPECT_FALSE(present(pool.a, key_for("llama", KVSHM_EXTRA_SALT, "s")));
  EXPECT_FALSE(present(pool.a, key_for("llama", KVSHM_EXTRA_ADAPTER, "s")));
}

// Who kept a bare offset finds by the life number that the bytes are another block's.
TEST(Semantics, S51_AStaleHandleIsDetected) {
  Pool pool({.blocks = 1});
  const block_key key = key_of(1);
  const kvshm_handle h = make_held(pool.a, key);
  EXPECT_EQ(drop(pool.a, h), 0);
  Child evictor([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    make_cached(a, key_of(2));  // the only block: the first key's is evicted
    CHILD_CHECK(kvshm_close(a, 1000) == 0);
    return 0;
  });
  ASSERT_EQ(evictor.wait(), 0);
  char byte;
  EXPECT_EQ(kvshm_copy_out(pool.a, h, 0, &byte, 1), -KVSHM_ENOTMINE);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), -ENOENT);
  kvshm_handle now;
  EXPECT_EQ(kvshm_handle_of(pool.a, h.id, &now), 0);
  EXPECT_NE(now.seq, h.seq);
  std::uint64_t n = 0;
  const kvshm_block_record* table = kvshm_block_table(pool.a, &n);
  ASSERT_EQ(n, 1u);
  EXPECT_NE(table[h.id].seq, h.seq);
  // Also when this process holds the new life.
  kvshm_handle held;
  ASSERT_EQ(kvshm_acquire(pool.a, key_of(2).data(), 0, &held), 0);
  EXPECT_EQ(kvshm_copy_out(pool.a, h, 0, &byte, 1), -KVSHM_ENOTMINE);
  EXPECT_EQ(kvshm_copy_out(pool.a, held, 0, &byte, 1), 0);
  EXPECT_EQ(drop(pool.a, held), 0);
  EXPECT_GE(stats(pool.a).misuse_total, 2u);
}

TEST(Semantics, S52_AForkedChildOwnsNothing) {
  Pool pool;
  const block_key key = key_of(1);
  const kvshm_handle h = make_held(pool.a, key);
  Child child([&](Wire&) {
    std::uint32_t id;
    kvshm_lease lease;
    kvshm_stats s = sized<kvshm_stats>();
    CHILD_CHECK(kvshm_drop(pool.a, &h, 1) == -KVSHM_EFORKED);
    CHILD_CHECK(kvshm_match(pool.a, raw(key), 1, &id, &lease) == -KVSHM_EFORKED);
    CHILD_CHECK(kvshm_get_stats(pool.a, &s) == -KVSHM_EFORKED);
    CHILD_CHECK(kvshm_block_data(pool.a, h.id) == nullptr);
    CHILD_CHECK(kvshm_block_table(pool.a, nullptr) == nullptr);
    CHILD_CHECK(kvshm_is_valid(pool.a, nullptr, nullptr) == -KVSHM_EFORKED);
    CHILD_CHECK(kvshm_close(pool.a, 100) == -KVSHM_EFORKED);
    kvshm_arena* own = attach(pool.name);  // attach anew: a slot and holds of its own
    CHILD_CHECK(own);
    CHILD_CHECK(drop(own, h) == -KVSHM_ENOTMINE);
    kvshm_handle mine;
    CHILD_CHECK(kvshm_acquire(own, key.data(), 0, &mine) == 0);
    CHILD_CHECK(drop(own, mine) == 0);
    CHILD_CHECK(kvshm_close(own, 1000) == 0);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(block(pool.a, h.id).own_holds, 1u);
  EXPECT_EQ(stats(pool.a).blocks_held, 1u);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// The parent dies, the child lives: nothing of the parent is kept by the child.
TEST(Semantics, S52_AForkedChildKeepsNothingAlive) {
  Pool pool;
  Child parent([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name, 0);
    CHILD_CHECK(a);
    make_held(a, key_of(1));
    fill_blocks(a, 2);
    const pid_t child = fork();
    if (child == 0) {
      wire.tell();  // lives on while its parent is gone
      wire.listen(20000);
      _exit(0);
    }
    wire.listen(20000);
    return 0;
  });
  ASSERT_TRUE(parent.listen());
  parent.kill();
  auto report = sized<kvshm_reap_report>();
  EXPECT_EQ(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(report.slots_cleared, 1u);
  EXPECT_EQ(report.holds, 1u);
  EXPECT_EQ(report.fills, 2u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S52_DoubleDetachAndAnArenaWithoutUsers) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  EXPECT_EQ(kvshm_close(pool.a, 1000), 0);
  EXPECT_EQ(kvshm_close(pool.a, 1000), -KVSHM_ECLOSED);
  EXPECT_EQ(kvshm_close(pool.a, 0), -KVSHM_ECLOSED);
  kvshm_stats s = sized<kvshm_stats>();
  EXPECT_EQ(kvshm_get_stats(pool.a, &s), -KVSHM_ECLOSED);
  EXPECT_EQ(kvshm_block_data(pool.a, 0), nullptr);
  kvshm_arena* again = attach(pool.name);  // the last detach destroyed nothing
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(present(again, key_of(1)));
  EXPECT_EQ(wrong_payloads(again), "");
  EXPECT_EQ(stats(again).slots_used, 1u);
  EXPECT_EQ(kvshm_close(again, 1000), 0);
}
