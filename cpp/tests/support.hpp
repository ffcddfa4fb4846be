// SPDX-License-Identifier: Apache-2.0
// What the tests share: an arena of their own, keys, payloads that can be checked, and children.
#pragma once
#include <gtest/gtest.h>
#include <kvshm.h>
#include <sys/types.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvshm_test {

using block_key = std::array<std::uint8_t, 16>;
using keys_t = std::vector<block_key>;
using handles_t = std::vector<kvshm_handle>;

block_key key_of(std::uint64_t n);  // well mixed, never zero
keys_t keys_of(std::uint64_t first, std::uint64_t n);
inline const kvshm_key* raw(const keys_t& k) {
  return reinterpret_cast<const kvshm_key*>(k.data());
}
inline const kvshm_key* raw(const block_key& k) {
  return reinterpret_cast<const kvshm_key*>(k.data());
}
inline kvshm_key* raw(keys_t& k) { return reinterpret_cast<kvshm_key*>(k.data()); }

template <class T>
T sized() {  // a struct of the API, empty
  T t{};
  t.size = sizeof t;
  return t;
}

std::string fresh_name(const char* what);  // of this process; for an arena that no test shares

struct Spec {
  std::uint64_t blocks = 16, block_bytes = 256;
  std::uint32_t flags = KVSHM_NO_HELPER;  // reaping happens when a test says so
  std::uint32_t timeout_ms = 0;
};
kvshm_options options(const Spec& s);
kvshm_arena* attach(const std::string& name, std::uint32_t flags = KVSHM_NO_HELPER);

// An arena that goes with the test. `a` is this process's attachment.
class Pool {
 public:
  explicit Pool(const Spec& s = {});
  Pool(const Pool&) = delete;
  ~Pool();
  kvshm_arena* another();  // a second attachment, closed with the pool
  void leave();            // detach; the arena stays until the end of the test
  const std::string name;
  kvshm_arena* a = nullptr;

 private:
  std::vector<kvshm_arena*> others_;
};

kvshm_stats stats(kvshm_arena* a);
kvshm_stats own_stats(kvshm_arena* a);
kvshm_block_info block(kvshm_arena* a, std::uint32_t id);
std::uint64_t available(kvshm_arena* a);  // free + inactive
std::string broken(kvshm_arena* a);       // every broken invariant in words; "" = none

// The payload that belongs to a key, and whether it is there.
void write_payload(kvshm_arena* a, std::uint32_t id, const block_key& key);
bool payload_right(kvshm_arena* a, std::uint32_t id, const block_key& key);
// Is every READY block's payload that of its key? "" or what is wrong.
std::string wrong_payloads(kvshm_arena* a);

// READY primaries that no look-up of their key finds. "" or which.
std::string unfindable(kvshm_arena* a);

// Filled, registered under the key and held; {0} and a test failure if not.
kvshm_handle make_held(kvshm_arena* a, const block_key& key,
                       kvshm_handle parent = {0, KVSHM_NONE, 0});
void make_cached(kvshm_arena* a, const block_key& key, kvshm_handle parent = {0, KVSHM_NONE, 0});
handles_t fill_blocks(kvshm_arena* a, std::uint32_t n);  // keyless, being filled
bool present(kvshm_arena* a, const block_key& key);
int drop(kvshm_arena* a, kvshm_handle h);
int abort_fills(kvshm_arena* a, const handles_t& h);

// The other end of a parent's or child's two pipes. One byte a message; 0 on time-out or end.
class Wire {
 public:
  Wire(int in, int out) : in_(in), out_(out) {}
  void tell(char c = '.');
  char listen(int timeout_ms = 20000);
  bool send(const void* p, std::size_t n);
  bool receive(void* p, std::size_t n, int timeout_ms = 20000);

 private:
  int in_, out_;
};

// A forked process that runs fn and exits with its value; killed with the test if it still runs.
class Child {
 public:
  explicit Child(const std::function<int(Wire&)>& fn);
  Child(Child&&) noexcept;
  Child(const Child&) = delete;
  ~Child();
  Wire wire() const { return Wire(in_, out_); }
  void tell(char c = '.') { wire().tell(c); }
  char listen(int timeout_ms = 20000) { return wire().listen(timeout_ms); }
  void kill();                       // SIGKILL and wait
  int wait(int timeout_ms = 60000);  // exit code; -signal; -1000 at the time-out
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, code_ = -1000;
};

// In a child: says where, and gives that line as exit code.
#define CHILD_CHECK(condition)                                                        \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d (child): %s: %s\n", __FILE__, __LINE__, #condition, \
                   kvshm_last_error());                                               \
      return 1 + __LINE__ % 250;                                                      \
    }                                                                                 \
  } while (0)

// What the children of the kill tests die with. A scene has a chain `cached`, a `held_key`, a shared
// `fill`. Two blocks of the chain held, two fills, a membership of the shared fill:
template <class Scene>
int hold_and_fill(kvshm_arena* a, Scene& s) {
  std::uint32_t ids[4];
  kvshm_lease lease;
  CHILD_CHECK(kvshm_match(a, raw(s.cached), 2, ids, &lease) == 2);
  const keys_t keys = keys_of(900, 2);
  handles_t h(2);
  CHILD_CHECK(kvshm_allocate(a, 2, raw(keys), nullptr, h.data(), nullptr, nullptr) == 0);
  CHILD_CHECK(kvshm_fill_join(a, s.fill) == 0);
  return 0;
}
// And a duplicate of the held key.
template <class Scene>
int hold_a_duplicate(kvshm_arena* a, Scene& s) {
  kvshm_handle dup;
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_QUIET;
  CHILD_CHECK(kvshm_allocate(a, 1, raw(s.held_key), &o, &dup, nullptr, nullptr) == 0);
  write_payload(a, dup.id, s.held_key);
  CHILD_CHECK(kvshm_register(a, &dup, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr) == 1);
  return 0;
}

std::int64_t now_ms();

// A scope in which `fn` runs at every step point of the library.
class Steps {
 public:
  explicit Steps(std::function<void(const char* name)> fn);
  Steps(const Steps&) = delete;
  ~Steps();

 private:
  std::function<void(const char*)> fn_;
};

}  // namespace kvshm_test
