// SPDX-License-Identifier: Apache-2.0
// Included before every source of the core that the weak-memory check is built from: std::atomic
// there becomes a class of the same size whose accesses go to weak/memory.cpp with their order and
// their line. The sources themselves are the library's, unchanged.
#pragma once
#define KVSHM_EVERY_ACCESS 1
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <source_location>
#include <string>
#include <unordered_map>
#include <vector>

#include "weak/access.hpp"

namespace std {  // so that the core's `std::atomic` finds it

template <class T>
class weak_atomic {
  using O = memory_order;
  using At = weak::At;
  T v_{};
  static uint64_t wide(T v) { return uint64_t(v); }

 public:
  static constexpr bool is_always_lock_free = true;
  weak_atomic() = default;
  constexpr weak_atomic(T v) : v_(v) {}
  weak_atomic(const weak_atomic&) = delete;
  T operator=(T v) { return v_ = v; }  // only where nobody else looks

  T load(O m = O::seq_cst, At at = At::current()) const {
    return T(weak::load(&v_, sizeof v_, m, at));
  }
  void store(T v, O m = O::seq_cst, At at = At::current()) {
    weak::store(&v_, sizeof v_, wide(v), m, at);
  }
  T fetch_add(T v, O m = O::seq_cst, At at = At::current()) {
    return T(weak::rmw(&v_, sizeof v_, weak::Op::kAdd, wide(v), m, at));
  }
  T fetch_sub(T v, O m = O::seq_cst, At at = At::current()) {
    return T(weak::rmw(&v_, sizeof v_, weak::Op::kSub, wide(v), m, at));
  }
  T fetch_and(T v, O m = O::seq_cst, At at = At::current()) {
    return T(weak::rmw(&v_, sizeof v_, weak::Op::kAnd, wide(v), m, at));
  }
  T fetch_or(T v, O m = O::seq_cst, At at = At::current()) {
    return T(weak::rmw(&v_, sizeof v_, weak::Op::kOr, wide(v), m, at));
  }
  bool compare_exchange_weak(T& want, T to, O ok, O failed, At at = At::current()) {
    return exchange(want, to, ok, failed, true, at);
  }
  bool compare_exchange_weak(T& want, T to, O m = O::seq_cst, At at = At::current()) {
    return exchange(want, to, m, weak::failed_order(m), true, at);
  }
  bool compare_exchange_strong(T& want, T to, O ok, O failed, At at = At::current()) {
    return exchange(want, to, ok, failed, false, at);
  }
  bool compare_exchange_strong(T& want, T to, O m = O::seq_cst, At at = At::current()) {
    return exchange(want, to, m, weak::failed_order(m), false, at);
  }

 private:
  bool exchange(T& want, T to, O ok, O failed, bool may_fail, const At& at) {
    uint64_t w = wide(want);
    const bool done = weak::exchange(&v_, sizeof v_, &w, wide(to), ok, failed, may_fail, at);
    want = T(w);
    return done;
  }
};

}  // namespace std

#define atomic weak_atomic
#define atomic_thread_fence weak_thread_fence
namespace std {
inline void weak_thread_fence(memory_order m, weak::At at = weak::At::current()) {
  weak::fence(m, at);
}
}  // namespace std
#define syscall weak::system_call
