// SPDX-License-Identifier: Apache-2.0
// A process that had registered memory with a device is killed: what the device may still write to
// stays away from everybody until its time is over; all else comes back at once.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "arena/breaks.hpp"
#include "arena/step.hpp"
#include "device_support.hpp"

using namespace kvshm_test;

namespace {

constexpr std::uint64_t kBlockBytes = 64 << 10;

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

struct Made {  // by the child, told to the parent
  kvshm_handle fill, held;
  std::uint32_t slot;
};

// A child that announces one fill, holds one block, registers with the mock and then does `then`.
Child dying(const std::string& name, std::uint32_t drain_ms,
            std::function<void(kvshm_arena*)> then = nullptr, const char* at_step = nullptr) {
  return Child([=](Wire& wire) {
    mock_reset();
    kvshm_arena* a = attach(name);
    CHILD_CHECK(a);
    Made m{};
    CHILD_CHECK(kvshm_allocate(a, 1, raw(key_of(1)), nullptr, &m.fill, nullptr, nullptr) == 0);
    m.held = make_held(a, key_of(2));
    m.slot = slot_of(a);
    CHILD_CHECK(wire.send(&m, sizeof m));
    auto o = mock_options(kMiB);
    o.drain_ms = drain_ms;
    static const char* step;
    step = at_step;
    kvshm::set_step_hook(
        [](const char* here, void*) {
          if (step && std::strcmp(here, step) == 0) die();
        },
        nullptr);
    CHILD_CHECK(kvshm_register_device(a, &o) == 0);
    if (then) then(a);
    wire.tell('r');
    wire.listen();
    die();
    return 0;
  });
}

class Drain : public ::testing::Test {
 protected:
  Drain() : pool({.blocks = 64, .block_bytes = kBlockBytes}) {}
  void reap() { ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0); }
  // Everything that a drain holds back, and nothing else.
  void expect_draining(const Made& m, std::uint64_t others = 1) {
    auto report = sized<kvshm_reap_report>();
    ASSERT_EQ(kvshm_reap(pool.a, &report), 0);
    EXPECT_EQ(report.slots_draining, 1u);
    EXPECT_EQ(report.slots_cleared, 0u);
    const kvshm_process p = process(pool.a, m.slot);
    EXPECT_TRUE(p.used && !p.alive && p.draining && p.device_memory);
    EXPECT_EQ(block(pool.a, m.fill.id).state, unsigned(KVSHM_FILLING));
    EXPECT_EQ(block(pool.a, m.fill.id).seq, m.fill.seq);
    EXPECT_EQ(block(pool.a, m.held.id).holders, 0u);  // its hold is back
    EXPECT_EQ(stats(pool.a).slots_used, others + 1);
  }
  void expect_over(const Made& m, int within_ms) {
    const std::int64_t deadline = now_ms() + within_ms;
    while (process(pool.a, m.slot).used && now_ms() < deadline) {
      reap();
      usleep(5000);
    }
    EXPECT_FALSE(process(pool.a, m.slot).used);
    EXPECT_EQ(block(pool.a, m.fill.id).state, unsigned(KVSHM_FREE));
    EXPECT_EQ(broken(pool.a), "");
  }
  Made made(Child& c) {
    Made m{};
    EXPECT_TRUE(c.wire().receive(&m, sizeof m));
    return m;
  }
  Pool pool;
};

TEST_F(Drain, FillsStayUntilItIsOver) {
  Child c = dying(pool.name, 700);
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  c.kill();
  const std::int64_t began = now_ms();
  expect_draining(m);
  while (now_ms() - began < 500) {
    reap();
    EXPECT_EQ(block(pool.a, m.fill.id).state, unsigned(KVSHM_FILLING));
    usleep(20000);
  }
  expect_over(m, 3000);
  EXPECT_GE(now_ms() - began, 650);
  EXPECT_LT(now_ms() - began, 1500) << "being looked at must not prolong it";
  EXPECT_EQ(stats(pool.a).reaped_fills_total, 1u);
}

TEST_F(Drain, TwoSecondsIfNotSaidOtherwise) {
  Child c = dying(pool.name, 0);
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  c.kill();
  const std::int64_t began = now_ms();
  expect_draining(m);
  usleep(1800 * 1000);
  reap();
  EXPECT_TRUE(process(pool.a, m.slot).used);
  expect_over(m, 3000);
  EXPECT_GE(now_ms() - began, 1950);
}

TEST_F(Drain, KeyIsFreeAndWaitersWakeAtOnce) {
  Child c = dying(pool.name, 4000);
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  kvshm_handle seen;
  ASSERT_EQ(kvshm_acquire(pool.a, key_of(1).data(), 0, &seen), -KVSHM_EPENDING);
  int rc = 0;
  std::int64_t woken = 0;
  std::thread waiter([&] {
    rc = kvshm_wait(pool.a, seen, 10000);
    woken = now_ms();
  });
  usleep(100000);
  const std::int64_t killed = now_ms();
  c.kill();
  waiter.join();
  EXPECT_EQ(rc, -ENOENT);
  EXPECT_LT(woken - killed, 1000);
  expect_draining(m);
  // The key can be filled anew, in another block.
  const kvshm_handle again = make_held(pool.a, key_of(1));
  EXPECT_NE(again.id, m.fill.id);
  EXPECT_EQ(drop(pool.a, again), 0);
}

// The block is given to nobody, however much space is wanted.
TEST_F(Drain, NobodyGetsTheBlock) {
  Child c = dying(pool.name, 600);
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  c.kill();
  expect_draining(m);
  const handles_t all = fill_blocks(pool.a, 63);  // the cached one is evicted
  for (const kvshm_handle& h : all) EXPECT_NE(h.id, m.fill.id);
  kvshm_handle one;
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &one, nullptr, nullptr), -KVSHM_ENOSPACE);
  // Who waits for space gets it when the time is over.
  auto o = sized<kvshm_fill_options>();
  o.timeout_ms = 5000;
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, &o, &one, nullptr, nullptr), 0);
  EXPECT_EQ(one.id, m.fill.id);
  EXPECT_EQ(kvshm_abort(pool.a, &one, 1), 0);
  EXPECT_EQ(abort_fills(pool.a, all), 0);
}

TEST_F(Drain, SlotIsNotClaimed) {
  Child c = dying(pool.name, 600);
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  std::vector<kvshm_arena*> rest;
  for (int i = 0; i < KVSHM_SLOTS - 2; i++) rest.push_back(pool.another());
  c.kill();
  const std::int64_t began = now_ms();
  kvshm_options o = KVSHM_OPTIONS_INIT;
  o.pin = KVSHM_OFF;
  o.flags = KVSHM_NO_HELPER;
  kvshm_arena* late = nullptr;
  EXPECT_EQ(kvshm_attach(&late, pool.name.c_str(), &o), -KVSHM_ENOSLOT);
  EXPECT_NE(std::string(kvshm_last_error()).find("1 drain, dead ones"), std::string::npos)
      << kvshm_last_error();
  expect_draining(m, KVSHM_SLOTS - 1);
  while (kvshm_attach(&late, pool.name.c_str(), &o) == -KVSHM_ENOSLOT && now_ms() - began < 5000)
    usleep(10000);
  ASSERT_NE(late, nullptr);
  EXPECT_GE(now_ms() - began, 550);
  EXPECT_EQ(slot_of(late), m.slot);
  EXPECT_EQ(process(pool.a, m.slot).device_memory, 0u);
  EXPECT_EQ(block(pool.a, m.fill.id).state, unsigned(KVSHM_FREE));
  EXPECT_EQ(kvshm_close(late, 1000), 0);
}

// The mark is there before the device hears of it.
TEST_F(Drain, KilledBeforeAndInTheFirstRegistration) {
  for (const char* step : {"pin.marked", "pin.register", "pin.registered"}) {
    Child c = dying(pool.name, 300, nullptr, step);
    const Made m = made(c);
    ASSERT_EQ(c.wait(), -SIGKILL) << step;
    expect_draining(m);
    expect_over(m, 3000);
  }
}

TEST_F(Drain, KilledWhileItIsUndone) {
  Child c = dying(pool.name, 300, [](kvshm_arena* a) { kvshm_close(a, 5000); }, "pin.unregister");
  const Made m = made(c);
  ASSERT_EQ(c.wait(), -SIGKILL);
  auto report = sized<kvshm_reap_report>();
  ASSERT_EQ(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(report.slots_draining, 1u);
  // What it held was given back before.
  EXPECT_EQ(block(pool.a, m.fill.id).state, unsigned(KVSHM_FREE));
  expect_over(m, 3000);
}

TEST_F(Drain, NoneAfterItWasUndone) {
  Child c = dying(pool.name, 60000, [](kvshm_arena* a) { kvshm_unregister_device(a, 5000); });
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  c.kill();
  reap();
  EXPECT_FALSE(process(pool.a, m.slot).used);
  EXPECT_EQ(block(pool.a, m.fill.id).state, unsigned(KVSHM_FREE));
}

TEST_F(Drain, NoneAfterAnOrderlyEnd) {
  Child c = dying(pool.name, 60000, [](kvshm_arena* a) { kvshm_close(a, 5000); });
  const Made m = made(c);
  ASSERT_EQ(c.listen(), 'r');
  EXPECT_FALSE(process(pool.a, m.slot).used);
  c.kill();
  reap();
  EXPECT_EQ(stats(pool.a).slots_used, 1u);
}

// The device byte counts as well: both must be over.
TEST_F(Drain, SurvivorsOfASharedFillGoOn) {
  auto o = sized<kvshm_fill_options>();
  o.parts = 2;
  kvshm_handle h;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key_of(9)), &o, &h, nullptr, nullptr), 0);
  Child c([&](Wire& wire) {
    mock_reset();
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    CHILD_CHECK(kvshm_fill_join(a, h) == 0 && kvshm_fill_begin(a, h, 1) == 0 &&
                kvshm_fill_arrive(a, h, 1) == 0);
    auto d = mock_options();
    d.drain_ms = 400;
    CHILD_CHECK(kvshm_register_device(a, &d) == 0);
    wire.tell('r');
    wire.listen();
    return 0;
  });
  ASSERT_EQ(c.listen(), 'r');
  c.kill();
  reap();
  write_payload(pool.a, h.id, key_of(9));
  ASSERT_EQ(kvshm_fill_begin(pool.a, h, 0), 0);
  ASSERT_EQ(kvshm_fill_arrive(pool.a, h, 0), 0);
  ASSERT_EQ(kvshm_publish(pool.a, h), 0);
  ASSERT_EQ(drop(pool.a, h), 0);
  const std::int64_t deadline = now_ms() + 3000;
  while (stats(pool.a).slots_used > 1 && now_ms() < deadline) {
    reap();
    usleep(5000);
  }
  EXPECT_TRUE(present(pool.a, key_of(9)));
  EXPECT_EQ(block(pool.a, h.id).holders, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

// A device that goes on writing into the dead process's fill for 600 ms, while the others take all
// the space there is, over and over: how many of their blocks had wrong bytes.
void late_writes(Pool& pool, const Made& m, Child& dies, std::uint64_t* wrong) {
  auto info = sized<kvshm_info>();
  ASSERT_EQ(kvshm_get_info(pool.a, &info), 0);
  const off_t at = off_t(info.data_offset + m.fill.id * kBlockBytes);
  Child device([&](Wire& wire) {
    const int fd = open(info.path, O_RDWR | O_CLOEXEC);
    CHILD_CHECK(fd >= 0);
    void* mapped = mmap(nullptr, kBlockBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    CHILD_CHECK(mapped != MAP_FAILED);
    auto* p = static_cast<volatile std::uint64_t*>(mapped);
    wire.tell();
    for (const std::int64_t end = now_ms() + 600; now_ms() < end; usleep(500))
      for (std::size_t i = 0; i < kBlockBytes / 8; i += 64) p[i] = p[i] + 1;
    return 0;
  });
  ASSERT_NE(device.listen(), 0);
  dies.kill();
  std::uint64_t key = 1000;
  for (const std::int64_t end = now_ms() + 1600; now_ms() < end;) {
    ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0);
    const keys_t keys = keys_of(key, 32);
    key += 32;
    handles_t h(32);
    if (kvshm_allocate(pool.a, 32, raw(keys), nullptr, h.data(), nullptr, nullptr)) continue;
    for (int i = 0; i < 32; i++) write_payload(pool.a, h[i].id, keys[i]);
    ASSERT_EQ(kvshm_register(pool.a, h.data(), 32, nullptr, KVSHM_ALLOW, h.data(), nullptr), 32);
    usleep(2000);
    for (int i = 0; i < 32; i++) *wrong += !payload_right(pool.a, h[i].id, keys[i]);
    ASSERT_EQ(kvshm_drop(pool.a, h.data(), 32), 0);
  }
  EXPECT_EQ(device.wait(), 0);
}

TEST_F(Drain, LateWritesHurtNobody) {
  for (const bool control : {false, true}) {
    Child c = dying(pool.name, 1000);
    const Made m = made(c);
    ASSERT_EQ(c.listen(), 'r');
    std::uint64_t wrong = 0;
    ASSERT_TRUE(kvshm::set_broken("device_ignored", control));
    late_writes(pool, m, c, &wrong);
    kvshm::set_broken("device_ignored", false);
    EXPECT_EQ(wrong > 0, control) << wrong;
    EXPECT_FALSE(process(pool.a, m.slot).used);
    EXPECT_EQ(broken(pool.a), "");
    ASSERT_GE(kvshm_clear(pool.a), 0);
  }
}

// Registration, use and detach, killed at every step of it.
TEST_F(Drain, KilledAtEveryStep) {
  int deaths = 0;
  for (int k = 1; k < 300; k++) {
    Child c([&](Wire&) {
      mock_reset();
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      static std::atomic<int> left;
      left = k;
      kvshm::set_step_hook(
          [](const char*, void*) {
            if (--left == 0) die();
          },
          nullptr);
      auto o = mock_options(kMiB);
      o.drain_ms = 1;
      CHILD_CHECK(kvshm_register_device(a, &o) == 0);
      kvshm_handle h;
      CHILD_CHECK(kvshm_allocate(a, 1, raw(key_of(7)), nullptr, &h, nullptr, nullptr) == 0);
      CHILD_CHECK(kvshm_unregister_device(a, 5000) == 0);
      CHILD_CHECK(kvshm_register_device(a, &o) == 0);
      CHILD_CHECK(kvshm_close(a, 5000) == 0);
      return 0;
    });
    const int end = c.wait(20000);
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << "step " << k << " ended with " << end;
    const std::int64_t deadline = now_ms() + 3000;
    while (stats(pool.a).slots_used > 1 && now_ms() < deadline) {
      reap();
      usleep(1000);
    }
    ASSERT_EQ(stats(pool.a).slots_used, 1u) << "step " << k;
    ASSERT_EQ(broken(pool.a), "") << "step " << k;
    ASSERT_EQ(stats(pool.a).blocks_filling, 0u) << "step " << k;
    if (end == 0) break;
    deaths++;
  }
  EXPECT_GT(deaths, 20);
  EXPECT_LT(deaths, 299);
}

}  // namespace
