// SPDX-License-Identifier: Apache-2.0
// Every access of the core to an atomic, with its order and its line.
#pragma once
#include <atomic>
#include <cstdint>
#include <source_location>

namespace weak {

using At = std::source_location;
enum class Op { kAdd, kSub, kAnd, kOr };

// p: the object's storage, `size` bytes; values zero-extended.
std::uint64_t load(const void* p, unsigned size, std::memory_order, const At&);
void store(void* p, unsigned size, std::uint64_t v, std::memory_order, const At&);
std::uint64_t rmw(void* p, unsigned size, Op, std::uint64_t v, std::memory_order, const At&);
bool exchange(void* p, unsigned size, std::uint64_t* want, std::uint64_t to, std::memory_order ok,
              std::memory_order failed, bool may_fail, const At&);
void fence(std::memory_order, const At& at = At::current());
long system_call(long number, void* word, int op, std::uint32_t value, ...);

constexpr std::memory_order failed_order(std::memory_order m) {
  return m == std::memory_order_acq_rel   ? std::memory_order_acquire
         : m == std::memory_order_release ? std::memory_order_relaxed
                                          : m;
}

}  // namespace weak
