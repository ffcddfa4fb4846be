// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "arena/step.hpp"

namespace kvshm_test {
namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

void add_broken(int invariant, std::uint32_t id, const char* what, void* user) {
  *static_cast<std::string*>(user) += "invariant " + std::to_string(invariant) + ", block " +
                                      std::to_string(id) + ": " + what + "\n";
}

std::uint64_t payload_word(const block_key& key, std::uint64_t i) {
  std::uint64_t lo;
  std::memcpy(&lo, key.data(), 8);
  return mix(lo ^ i * 0x100000001b3ULL);
}

}  // namespace

block_key key_of(std::uint64_t n) {
  block_key k;
  const std::uint64_t lo = mix(n) | 1, hi = mix(~n);
  std::memcpy(k.data(), &lo, 8);
  std::memcpy(k.data() + 8, &hi, 8);
  return k;
}

keys_t keys_of(std::uint64_t first, std::uint64_t n) {
  keys_t keys;
  for (std::uint64_t i = 0; i < n; i++) keys.push_back(key_of(first + i));
  return keys;
}

std::string fresh_name(const char* what) {
  static std::atomic<int> n{0};
  return std::string("test-") + what + "-" + std::to_string(getpid()) + "-" + std::to_string(++n);
}

kvshm_options options(const Spec& s) {
  kvshm_options o = KVSHM_OPTIONS_INIT;
  o.blocks = s.blocks;
  o.block_bytes = s.block_bytes;
  o.flags = s.flags;
  o.timeout_ms = s.timeout_ms;
  o.pin = KVSHM_OFF;
  return o;
}

kvshm_arena* attach(const std::string& name, std::uint32_t flags) {
  kvshm_options o = KVSHM_OPTIONS_INIT;
  o.flags = flags;
  o.pin = KVSHM_OFF;
  kvshm_arena* a = nullptr;
  if (int rc = kvshm_attach(&a, name.c_str(), &o))
    std::fprintf(stderr, "attach %s: %s (%s)\n", name.c_str(), kvshm_strerror(rc),
                 kvshm_last_error());
  return a;
}

Pool::Pool(const Spec& s) : name(fresh_name("pool")) {
  const kvshm_options o = options(s);
  const int rc = kvshm_create(&a, name.c_str(), &o);
  EXPECT_EQ(rc, 0) << kvshm_last_error();
  if (rc) throw std::runtime_error("no arena");  // no test can go on
}

Pool::~Pool() {
  for (kvshm_arena* o : others_) kvshm_close(o, 5000);
  leave();
  kvshm_remove(name.c_str(), nullptr, 1);
  kvshm_remove((name + "-g3").c_str(), nullptr, 1);  // of a tier, if it had one
}

kvshm_arena* Pool::another() {
  others_.push_back(attach(name));
  return others_.back();
}

void Pool::leave() {
  if (a) kvshm_close(a, 5000);
  a = nullptr;
}

kvshm_stats stats(kvshm_arena* a) {
  kvshm_stats s;
  s.size = sizeof s;
  EXPECT_EQ(kvshm_get_stats(a, &s), 0);
  return s;
}

kvshm_stats own_stats(kvshm_arena* a) {
  kvshm_stats s;
  s.size = sizeof s;
  EXPECT_EQ(kvshm_get_own_stats(a, &s), 0);
  return s;
}

kvshm_block_info block(kvshm_arena* a, std::uint32_t id) {
  auto b = sized<kvshm_block_info>();
  EXPECT_EQ(kvshm_get_block(a, id, &b), 0);
  return b;
}

std::uint64_t available(kvshm_arena* a) {
  const kvshm_stats s = stats(a);
  return s.blocks_free + s.blocks_inactive;
}

std::string broken(kvshm_arena* a) {
  std::string text;
  const std::int64_t n = kvshm_is_valid(a, add_broken, &text);
  if (n < 0) text += std::string("is_valid: ") + kvshm_strerror(int(n));
  return text;
}

void write_payload(kvshm_arena* a, std::uint32_t id, const block_key& key) {
  auto info = sized<kvshm_info>();
  kvshm_get_info(a, &info);
  auto* p = static_cast<std::uint64_t*>(kvshm_block_data(a, id));
  for (std::uint64_t i = 0; p && i < info.block_bytes / 8; i++) p[i] = payload_word(key, i);
}

bool payload_right(kvshm_arena* a, std::uint32_t id, const block_key& key) {
  auto info = sized<kvshm_info>();
  kvshm_get_info(a, &info);
  const auto* p = static_cast<const std::uint64_t*>(kvshm_block_data(a, id));
  for (std::uint64_t i = 0; p && i < info.block_bytes / 8; i++)
    if (p[i] != payload_word(key, i)) return false;
  return p != nullptr;
}

std::string wrong_payloads(kvshm_arena* a) {
  const std::uint64_t n = stats(a).blocks_total;
  std::string text;
  for (std::uint32_t id = 0; id < n; id++) {
    const kvshm_block_info b = block(a, id);
    if (b.state != KVSHM_READY && b.state != KVSHM_READY_LAST) continue;
    block_key key;
    std::memcpy(key.data(), b.key, 16);
    if (!payload_right(a, id, key)) text += "wrong bytes in block " + std::to_string(id) + "\n";
  }
  return text;
}

std::string unfindable(kvshm_arena* a) {
  const std::uint64_t n = stats(a).blocks_total;
  std::string text;
  for (std::uint32_t id = 0; id < n; id++) {
    const kvshm_block_info b = block(a, id);
    if (b.state != KVSHM_READY && b.state != KVSHM_READY_LAST) continue;
    if (b.flags & (KVSHM_F_DUPLICATE | KVSHM_F_PRIVATE | KVSHM_F_FAILED)) continue;
    if (b.ttl_ms == 0) continue;  // its time to live is over: nobody is to find it
    kvshm_handle h;
    const int rc = kvshm_acquire(a, b.key, KVSHM_NO_TOUCH, &h);
    if (rc || h.id != id) text += "nobody finds block " + std::to_string(id) + " by its key\n";
    if (!rc) drop(a, h);
  }
  return text;
}

kvshm_handle make_held(kvshm_arena* a, const block_key& key, kvshm_handle parent) {
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  o.parent = parent;
  kvshm_handle h = {0, KVSHM_NONE, 0};
  int rc = kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr);
  EXPECT_EQ(rc, 0) << kvshm_last_error();
  if (rc) return h;
  write_payload(a, h.id, key);
  EXPECT_EQ(kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr), 1) << kvshm_last_error();
  return h;
}

void make_cached(kvshm_arena* a, const block_key& key, kvshm_handle parent) {
  EXPECT_EQ(drop(a, make_held(a, key, parent)), 0);
}

handles_t fill_blocks(kvshm_arena* a, std::uint32_t n) {
  handles_t h(n);
  EXPECT_EQ(kvshm_allocate(a, n, nullptr, nullptr, h.data(), nullptr, nullptr), 0)
      << kvshm_last_error();
  return h;
}

bool present(kvshm_arena* a, const block_key& key) {
  std::uint8_t mask = 0;
  EXPECT_GE(kvshm_presence(a, raw(key), 1, &mask), 0);
  return mask & KVSHM_IN_G2;
}

int drop(kvshm_arena* a, kvshm_handle h) { return kvshm_drop(a, &h, 1); }

int abort_fills(kvshm_arena* a, const handles_t& h) {
  return kvshm_abort(a, h.data(), std::uint32_t(h.size()));
}

bool Wire::send(const void* p, std::size_t n) { return write(out_, p, n) == ssize_t(n); }

bool Wire::receive(void* p, std::size_t n, int timeout_ms) {
  struct pollfd f = {in_, POLLIN, 0};
  int rc;
  while ((rc = poll(&f, 1, timeout_ms)) < 0 && errno == EINTR) {
  }
  return rc == 1 && read(in_, p, n) == ssize_t(n);
}

void Wire::tell(char c) { send(&c, 1); }

char Wire::listen(int timeout_ms) {
  char c = 0;
  return receive(&c, 1, timeout_ms) ? c : 0;
}

Child::Child(const std::function<int(Wire&)>& fn) {
  int to[2], from[2];
  if (pipe(to) || pipe(from)) throw std::runtime_error("pipe");
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // none outlives the test
    if (getppid() != parent) _exit(1);
    signal(SIGPIPE, SIG_IGN);
    close(to[1]);
    close(from[0]);
    Wire wire(to[0], from[1]);
    int code = 255;
    try {
      code = fn(wire);
    } catch (...) {
    }
    _exit(code);
  }
  signal(SIGPIPE, SIG_IGN);
  close(to[0]);
  close(from[1]);
  in_ = from[0];
  out_ = to[1];
}

Child::Child(Child&& o) noexcept : pid_(o.pid_), in_(o.in_), out_(o.out_), code_(o.code_) {
  o.pid_ = -1;
  o.in_ = o.out_ = -1;
}

Child::~Child() {
  if (pid_ > 0) kill();
  if (in_ >= 0) close(in_);
  if (out_ >= 0) close(out_);
}

void Child::kill() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  wait();
}

int Child::wait(int timeout_ms) {
  if (pid_ < 0) return code_;
  const std::int64_t deadline = now_ms() + timeout_ms;
  int status;
  for (;;) {
    const pid_t got = waitpid(pid_, &status, WNOHANG);
    if (got == pid_) break;
    if (now_ms() >= deadline) return -1000;
    usleep(500);
  }
  pid_ = -1;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return code_;
}

std::int64_t now_ms() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1000} + t.tv_nsec / 1000000;
}

Steps::Steps(std::function<void(const char*)> fn) : fn_(std::move(fn)) {
  kvshm::set_step_hook([](const char* name, void* user) { static_cast<Steps*>(user)->fn_(name); },
                       this);
}

Steps::~Steps() { kvshm::set_step_hook(nullptr, nullptr); }

}  // namespace kvshm_test
