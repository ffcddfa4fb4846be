// SPDX-License-Identifier: Apache-2.0
#include "weak/memory.hpp"

#include <linux/futex.h>

#include <cstring>
#include <new>

#include "weak/access.hpp"
#include "weak/relacy.hpp"
#include "weak/source.hpp"

namespace weak {
namespace {

using Word = rl::atomic<std::uint64_t>;
struct Cell {
  const void* at;
  alignas(Word) unsigned char room[sizeof(Word)];
  Word& word() { return *reinterpret_cast<Word*>(room); }
};
Cell cells[64];
unsigned ncells = 0;

std::vector<Lines> weak_lines;
std::uint64_t met = 0;

Word* find(const void* p) {
  for (unsigned i = 0; i < ncells; i++)
    if (cells[i].at == p) return &cells[i].word();
  return nullptr;
}

rl::debug_info where(const At& at) {
  return rl::debug_info(at.function_name(), at.file_name(), at.line());
}

rl::memory_order order(std::memory_order m, const At& at) {
  for (const Lines& l : weak_lines)
    if (l.has(at.file_name(), at.line())) {
      met++;
      return rl::mo_relaxed;
    }
  switch (m) {
    case std::memory_order_relaxed:
      return rl::mo_relaxed;
    case std::memory_order_consume:
    case std::memory_order_acquire:
      return rl::mo_acquire;
    case std::memory_order_release:
      return rl::mo_release;
    case std::memory_order_acq_rel:
      return rl::mo_acq_rel;
    case std::memory_order_seq_cst:
      break;
  }
  return rl::mo_seq_cst;
}

std::uint64_t plain(const void* p, unsigned size) {
  std::uint64_t v = 0;
  std::memcpy(&v, p, size);  // little-endian, as the layout is
  return v;
}

}  // namespace

void watch(void* word, unsigned size) {
  RL_ASSERT(ncells < std::size(cells));
  Cell& c = cells[ncells++];
  c.at = word;
  ::new (c.room) Word();
  c.word().store(plain(word, size), rl::mo_relaxed, $);
}

void forget_all() {
  while (ncells) cells[--ncells].word().~Word();
}

void abandon_all() { ncells = 0; }

bool weaken(const std::string& what) {
  weak_lines = find_lines(what);
  met = 0;
  return !weak_lines.empty();
}

void restore() { weak_lines.clear(); }
std::uint64_t weakened_accesses() { return met; }

std::uint64_t load(const void* p, unsigned size, std::memory_order m, const At& at) {
  Word* w = find(p);
  return w ? w->load(order(m, at), where(at)) : plain(p, size);
}

void store(void* p, unsigned size, std::uint64_t v, std::memory_order m, const At& at) {
  if (Word* w = find(p))
    w->store(v, order(m, at), where(at));
  else
    std::memcpy(p, &v, size);
}

std::uint64_t rmw(void* p, unsigned size, Op op, std::uint64_t v, std::memory_order m,
                  const At& at) {
  if (Word* w = find(p)) {
    const rl::memory_order o = order(m, at);
    switch (op) {
      case Op::kAdd:
        return w->fetch_add(v, o, where(at));
      case Op::kSub:
        return w->fetch_sub(v, o, where(at));
      case Op::kAnd:
        return w->fetch_and(v, o, where(at));
      case Op::kOr:
        return w->fetch_or(v, o, where(at));
    }
  }
  const std::uint64_t before = plain(p, size);
  const std::uint64_t after = op == Op::kAdd   ? before + v
                              : op == Op::kSub ? before - v
                              : op == Op::kAnd ? (before & v)
                                               : (before | v);
  std::memcpy(p, &after, size);
  return before;
}

bool exchange(void* p, unsigned size, std::uint64_t* want, std::uint64_t to, std::memory_order ok,
              std::memory_order failed, bool may_fail, const At& at) {
  if (Word* w = find(p)) {
    const rl::memory_order o = order(ok, at), f = order(failed, at);
    return may_fail ? w->compare_exchange_weak(*want, to, o, where(at), f, where(at))
                    : w->compare_exchange_strong(*want, to, o, where(at), f, where(at));
  }
  const std::uint64_t now = plain(p, size);
  if (now != *want) return *want = now, false;
  std::memcpy(p, &to, size);
  return true;
}

void fence(std::memory_order m, const At& at) {
  if (order(m, at) != rl::mo_relaxed) rl::atomic_thread_fence(rl::mo_seq_cst, where(at));
}

// Futexes without a time-out: a lost wake is a deadlock, which Relacy reports.
long system_call(long, void* word, int op, std::uint32_t value, ...) {
  Word* w = find(word);
  if (!w) return 0;
  rl::context& c = rl::ctx();
  c.sched();
  c.atomic_thread_fence_seq_cst();
  if (op == FUTEX_WAKE || op == FUTEX_WAKE_PRIVATE) return w->wake(c, 64, $);
  std::uint64_t now;
  {
    rl::preemption_disabler alone(c);
    now = w->load(rl::mo_seq_cst, $);
  }
  if (now == value) w->wait(c, false, false, $);
  return 0;
}

}  // namespace weak
