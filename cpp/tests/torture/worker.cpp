// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include "capi/call.hpp"
#include "death.hpp"
#include "faults.hpp"
#include "last_words.hpp"
#include "ops.hpp"

namespace torture {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void rest_us(long us) {
  const struct timespec t = {0, us * 1000};
  nanosleep(&t, nullptr);
}

void* second_thread(void* hand) {
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);  // the first thread knows whether it may die
  Hand& w = *static_cast<Hand*>(hand);
  Death::thread(w.thread, w.record.plan.seed + 2);
  spare_stack(w.thread);
  w.work();
  return nullptr;
}

}  // namespace

kvshm_options open_options(const Shape& shape, bool helper) {
  kvshm_options o = KVSHM_OPTIONS_INIT;
  o.blocks = shape.blocks;
  o.block_bytes = shape.block_bytes;
  o.flags = helper ? 0 : KVSHM_NO_HELPER;
  o.reap_ms = 2;
  o.pin = KVSHM_OFF;
  o.huge = KVSHM_OFF;
  o.label = "torture";
  o.timeout_ms = 20000;
  return o;
}

// False: the round ends.
bool Hand::pause_here() {
  const std::uint32_t p = shared.pause.load(std::memory_order_acquire);
  if (p & 1) {
    if (thread == 0 && record.plan.threads > 1)  // the last to stop: it has the alarm
      while (record.acked[1].load(std::memory_order_acquire) != p) rest_us(50);  // it comes
    record.acked[thread].store(p, std::memory_order_release);
    while (shared.pause.load(std::memory_order_acquire) == p) rest_us(200);
    check_everything("after a pause");
  }
  return !shared.ending.load(kRelaxed);
}

void Hand::work() {
  if (thread + 1 == record.plan.threads) commit_fault(record.plan.fault);
  const Op favourite = Op(record.plan.favourite);
  const std::uint32_t last = record.plan.closes ? rng.between(20, 300) : 0;
  for (std::uint32_t n = 1; pause_here() && n != last; n++) {
    run_op(favourite && rng.percent(40) ? favourite : some_op(rng), *this);
    // Nothing must be left undecided for long in a tiny arena.
    if (fills.size() > 3) run_op(kOp_write_and_register, *this);
  }
}

bool Hand::reopen() {
  if (a) {
    check_everything("before closing");
    forget();
    Death::attached(nullptr);
    kvshm_arena* const old = a;
    a = nullptr;
    if (!expect(kvshm_close(old, 10000), {}, "close")) return false;
  }
  const kvshm_options o = open_options(shape, record.plan.helper);
  const int rc = kvshm_open(&a, name.c_str(), &o);
  if (rc && record.plan.fails) _exit(0);
  if (rc) {
    violation(shared, "open: %s (%s)", kvshm_strerror(rc), kvshm_last_error());
    return false;
  }
  Death::attached(a);
  if (record.plan.device) a->impl->mine->device_memory.store(1);
  shared.opened.fetch_add(1, kRelaxed);
  return true;
}

void live(Shared& shared, Record& record, const Shape& shape, const std::string& name) noexcept {
  prctl(PR_SET_TIMERSLACK, 1);
  const std::uint64_t seed = record.plan.seed;
  Hand first(shared, record, shape, name, seed, 0),
      second(shared, record, shape, name, seed + 1, 1);
  Death::prepare(shared, record);
  Death::thread(0, seed + 3);
  Death::operation(kOpening);
  if (record.plan.before_open) Death::arm();
  if (record.plan.removes) {
    first.expect(kvshm_remove(name.c_str(), nullptr, 0), {ENOENT}, "remove");
    _exit(0);
  }
  if (!first.reopen()) _exit(1);
  if (!record.plan.before_open) Death::arm();
  pthread_t other;
  const bool two = record.plan.threads > 1;
  if (two) {
    second.use(first.a);
    if (pthread_create(&other, nullptr, second_thread, &second)) _exit(3);
  }
  first.work();
  if (two) pthread_join(other, nullptr);
  Death::operation(kOpening);
  first.check_everything("at the end");
  second.check_everything("at the end");
  Death::attached(nullptr);
  first.expect(kvshm_close(first.a, 10000), {}, "close");
  _exit(0);
}

}  // namespace torture
