// SPDX-License-Identifier: Apache-2.0
// Arenas as objects: names, options, the 49th process, removal under users, remains of the dead.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "arena/layout.hpp"
#include "arena/lock.hpp"
#include "support.hpp"

using namespace kvshm_test;

TEST(Arena, Names) {
  kvshm_arena* a = nullptr;
  const kvshm_options o = options({});
  const std::string longest(63, 'x'), too_long(64, 'x');
  for (const char* bad :
       {"", "-a", "_a", "A", "a b", "a/b", "a.b", "../a", "\xc3\xa4", too_long.c_str()}) {
    EXPECT_EQ(kvshm_create(&a, bad, &o), -EINVAL) << bad;
    EXPECT_EQ(kvshm_attach(&a, bad, &o), -EINVAL) << bad;
    EXPECT_EQ(kvshm_remove(bad, nullptr, 1), -EINVAL) << bad;
    EXPECT_STRNE(kvshm_last_error(), "");
  }
  EXPECT_EQ(kvshm_create(&a, nullptr, &o), -EINVAL);
  EXPECT_EQ(kvshm_create(nullptr, "x", &o), -EINVAL);
  EXPECT_EQ(kvshm_create(&a, longest.c_str(), &o), 0) << kvshm_last_error();
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  EXPECT_EQ(kvshm_remove(longest.c_str(), nullptr, 0), 0);
  EXPECT_EQ(kvshm_remove(longest.c_str(), nullptr, 0), -ENOENT);
  EXPECT_EQ(kvshm_attach(&a, longest.c_str(), &o), -ENOENT);
}

TEST(Arena, AutomaticNames) {
  auto id = sized<kvshm_identity>();
  id.model = "m";
  id.weights = "w";
  id.block_tokens = 16;
  char raw_name[64], first[64], second[64];
  ASSERT_GT(kvshm_auto_name(nullptr, raw_name, sizeof raw_name), 0);
  ASSERT_GT(kvshm_auto_name(&id, first, sizeof first), 0);
  id.model = "other";
  const std::int64_t n = kvshm_auto_name(&id, second, sizeof second);
  EXPECT_EQ(n, std::int64_t(std::strlen(second)));
  EXPECT_STRNE(first, second);
  EXPECT_STRNE(first, raw_name);
  EXPECT_EQ(kvshm_auto_name(&id, second, 5), -ENOSPC);
  EXPECT_EQ(kvshm_auto_name(&id, nullptr, 64), -EINVAL);
}

TEST(Arena, OptionsAreChecked) {
  kvshm_arena* a = nullptr;
  const std::string name = fresh_name("options");
  auto refused = [&](auto change, int want) {
    kvshm_options o = options({});
    change(o);
    EXPECT_EQ(kvshm_create(&a, name.c_str(), &o), want) << kvshm_last_error();
    EXPECT_EQ(a, nullptr);
    EXPECT_STRNE(kvshm_last_error(), "");
    struct stat st;
    EXPECT_NE(stat(("/dev/shm/kvshm." + name).c_str(), &st), 0) << "remains of a refused arena";
  };
  refused([](kvshm_options& o) { o.size = 8; }, -EINVAL);
  refused([](kvshm_options& o) { o.size = 5000; }, -EINVAL);
  refused([](kvshm_options& o) { o.block_bytes = 100; }, -EINVAL);
  refused([](kvshm_options& o) { o.blocks = 0; }, -EINVAL);
  refused([](kvshm_options& o) { o.bytes = 4096; }, -EINVAL);
  refused([](kvshm_options& o) { o.pin = 9; }, -EINVAL);
  refused([](kvshm_options& o) { o.numa = 999; }, -KVSHM_EUNSUPPORTED);
  refused([](kvshm_options& o) { o.group = "no-such-group-here"; }, -EINVAL);
  refused([](kvshm_options& o) { o.dir = "/nonexistent"; }, -ENOENT);
#ifdef __SANITIZE_THREAD__
  constexpr std::uint64_t kTooMany = 1 << 9;  // it leaves a program less than 2 TiB of addresses
#else
  constexpr std::uint64_t kTooMany = 1 << 16;
#endif
  refused(
      [](kvshm_options& o) {
        o.blocks = kTooMany;
        o.block_bytes = 1 << 30;
      },
      -ENOSPC);
  // A caller's smaller struct of an older release is fine: what it lacks is 0.
  kvshm_options o = options({});
  o.size = offsetof(kvshm_options, quota);
  ASSERT_EQ(kvshm_create(&a, name.c_str(), &o), 0) << kvshm_last_error();
  kvshm_arena* b = nullptr;
  EXPECT_EQ(kvshm_create(&b, name.c_str(), &o), -EEXIST);
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 0), 0);
}

TEST(Arena, ModeIsExactWhateverTheUmask) {
  const mode_t old = umask(0);
  Pool pool;
  umask(old);
  struct stat st;
  ASSERT_EQ(stat(("/dev/shm/kvshm." + pool.name).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
}

TEST(Arena, InfoTellsWhatWasMade) {
  Pool pool({.blocks = 10, .block_bytes = 4096});
  auto info = sized<kvshm_info>();
  ASSERT_EQ(kvshm_get_info(pool.a, &info), 0);
  EXPECT_EQ(info.blocks, 10u);
  EXPECT_EQ(info.block_bytes, 4096u);
  EXPECT_EQ(info.name, pool.name);
  EXPECT_EQ(info.created, 1u);
  EXPECT_EQ(info.raw, 1u);
  EXPECT_EQ(info.slots_used, 1u);
  EXPECT_GE(info.bytes, info.data_offset + 10 * 4096);
  struct stat st;
  ASSERT_EQ(stat(info.path, &st), 0);
  EXPECT_EQ(std::uint64_t(st.st_size), info.bytes);
  auto p = sized<kvshm_process>();
  ASSERT_EQ(kvshm_get_process(pool.a, info.slot, &p), 0);
  EXPECT_EQ(p.pid, getpid());
  EXPECT_EQ(p.self, 1u);
  EXPECT_EQ(p.alive, 1u);
  EXPECT_STRNE(p.label, "");
  EXPECT_EQ(kvshm_get_process(pool.a, 48, &p), -EINVAL);
}

TEST(Arena, TheFortyNinthProcess) {
  Pool pool({.blocks = 64});
  std::vector<Child> children;
  for (int p = 1; p < KVSHM_SLOTS; p++) {
    children.emplace_back([&](Wire& parent) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      make_held(a, key_of(1));
      parent.tell();
      parent.listen();
      return 0;
    });
    ASSERT_TRUE(children.back().listen());
  }
  kvshm_arena* a = nullptr;
  kvshm_options o = options({});
  EXPECT_EQ(kvshm_attach(&a, pool.name.c_str(), &o), -KVSHM_ENOSLOT);
  EXPECT_NE(std::string(kvshm_last_error()).find(std::to_string(children[0].pid())),
            std::string::npos)
      << "who holds the slots: " << kvshm_last_error();
  EXPECT_EQ(broken(pool.a), "");
  children[20].kill();  // its slot is taken at once, and scrubbed on the way
  EXPECT_EQ(kvshm_attach(&a, pool.name.c_str(), &o), 0) << kvshm_last_error();
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  for (auto& c : children) c.kill();
  auto report = sized<kvshm_reap_report>();
  EXPECT_EQ(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(report.slots_cleared, 46u);
  EXPECT_EQ(stats(pool.a).slots_used, 1u);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Arena, RemoveUnderUsers) {
  Pool pool;
  const block_key key = key_of(1);
  const kvshm_handle h = make_held(pool.a, key);
  std::uint32_t id;
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(key), 1, &id, &lease), 1);
  const handles_t fill = fill_blocks(pool.a, 1);
  EXPECT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 0), -KVSHM_EINUSE);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 1), 0);
  // What is held stays readable and can be given back; nothing new is to be had.
  EXPECT_TRUE(payload_right(pool.a, id, key));
  char byte;
  EXPECT_EQ(kvshm_copy_out(pool.a, h, 0, &byte, 1), 0);
  kvshm_handle out;
  kvshm_lease other;
  EXPECT_EQ(kvshm_match(pool.a, raw(key), 1, &id, &other), -ESTALE);
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &out, nullptr, nullptr), -ESTALE);
  EXPECT_EQ(kvshm_acquire(pool.a, key.data(), 0, &out), -ESTALE);
  EXPECT_EQ(kvshm_register(pool.a, fill.data(), 1, raw(key), KVSHM_ALLOW, nullptr, nullptr),
            -ESTALE);
  EXPECT_EQ(kvshm_reap(pool.a, nullptr), -ESTALE);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(kvshm_abort(pool.a, fill.data(), 1), 0);
  // A new one under the name at once, beside the old.
  kvshm_arena* a = nullptr;
  const kvshm_options o = options({});
  ASSERT_EQ(kvshm_create(&a, pool.name.c_str(), &o), 0) << kvshm_last_error();
  make_cached(a, key);
  EXPECT_EQ(kvshm_upgrade(a, h, 0), -ENOENT) << "a handle of the former arena fits the new one";
  EXPECT_EQ(kvshm_close(pool.a, 1000), 0);
  EXPECT_EQ(broken(a), "");
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  EXPECT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 0), 0);
}

TEST(Arena, AWaiterHearsOfTheRemoval) {
  Pool pool;
  kvshm_arena* b = pool.another();
  kvshm_handle h;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key_of(1)), nullptr, &h, nullptr, nullptr), 0);
  std::thread waiter([&] {
    const std::int64_t from = now_ms();
    EXPECT_EQ(kvshm_wait(b, h, 10000), -ESTALE);
    EXPECT_LT(now_ms() - from, 3000);
  });
  usleep(50000);
  EXPECT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 1), 0);
  waiter.join();
}

// A remover that died between marking and unlinking: the next who opens makes a new arena.
TEST(Arena, AHalfRemovedArena) {
  const std::string name = fresh_name("half");
  kvshm_options o = options({});
  o.timeout_ms = 2000;
  kvshm_arena* a = nullptr;
  ASSERT_EQ(kvshm_create(&a, name.c_str(), &o), 0);
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  Child remover([&](Wire&) {
    const int fd = open(("/dev/shm/kvshm." + name).c_str(), O_RDWR);
    const std::uint32_t one = 1;
    return fd >= 0 && pwrite(fd, &one, 4, offsetof(kvshm::Superblock, dead)) == 4 ? 0 : 1;
  });
  ASSERT_EQ(remover.wait(), 0);
  a = nullptr;
  EXPECT_EQ(kvshm_open(&a, name.c_str(), &o), 0) << kvshm_last_error();
  if (a) {
    make_cached(a, key_of(1));
    EXPECT_EQ(broken(a), "");
    EXPECT_EQ(kvshm_close(a, 1000), 0);
  }
  EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 1), 0);
}

TEST(Arena, ForeignAndCutObjects) {
  const std::string name = fresh_name("foreign"), path = "/dev/shm/kvshm." + name;
  kvshm_options o = options({});
  o.timeout_ms = 400;
  kvshm_arena* a = nullptr;
  auto write_file = [&](std::size_t n, char fill) {
    unlink(path.c_str());
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    ASSERT_GE(fd, 0);
    const std::string bytes(n, fill);
    ASSERT_EQ(write(fd, bytes.data(), n), ssize_t(n));
    close(fd);
  };
  write_file(100, 'x');
  EXPECT_EQ(kvshm_attach(&a, name.c_str(), &o), -KVSHM_ELAYOUT);
  write_file(8192, 'x');
  EXPECT_EQ(kvshm_open(&a, name.c_str(), &o), -KVSHM_ELAYOUT);
  write_file(0, 0);  // its creator died before it wrote anything
  EXPECT_EQ(kvshm_attach(&a, name.c_str(), &o), -KVSHM_ENOTREADY);
  EXPECT_EQ(kvshm_open(&a, name.c_str(), &o), 0) << kvshm_last_error();
  EXPECT_EQ(kvshm_close(a, 1000), 0);
  ASSERT_EQ(truncate(path.c_str(), 100000), 0);  // cut short
  a = nullptr;
  EXPECT_EQ(kvshm_attach(&a, name.c_str(), &o), -EBADMSG);
  EXPECT_EQ(a, nullptr);
  unlink(path.c_str());
  ASSERT_EQ(symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_LT(kvshm_open(&a, name.c_str(), &o), 0);
  EXPECT_EQ(a, nullptr);
  unlink(path.c_str());
}

// Which locks a process has, and that closing another descriptor of the object drops none.
TEST(Arena, TheLifeByteIsHeldAndOnlyThat) {
  Pool pool;
  auto info = sized<kvshm_info>();
  ASSERT_EQ(kvshm_get_info(pool.a, &info), 0);
  for (int i = 0; i < 3; i++) {
    kvshm::File f(open(info.path, O_RDWR | O_CLOEXEC));
    EXPECT_EQ(kvshm::byte_locked(f.get(), kvshm::life_byte(info.slot)), 1);
    EXPECT_EQ(kvshm::byte_locked(f.get(), kvshm::life_byte(info.slot + 1)), 0);
    EXPECT_EQ(kvshm::byte_locked(f.get(), kvshm::kCreationByte), 0);
    EXPECT_EQ(kvshm::byte_locked(f.get(), kvshm::kAllocationByte), 0);
    EXPECT_EQ(kvshm::lock_byte(f.get(), true, kvshm::life_byte(info.slot)), -EAGAIN);
  }
  for (int fd = 3; fd < 200; fd++)
    if (fcntl(fd, F_GETFD) >= 0) {
      char target[256] = {};
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      if (readlink(link.c_str(), target, sizeof target - 1) > 0) {
        EXPECT_STRNE(target, info.path) << "a descriptor that a closerange could lose";
      }
    }
}
