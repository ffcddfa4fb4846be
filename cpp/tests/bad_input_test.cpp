// SPDX-License-Identifier: Apache-2.0
// Random input at attach and at every entry that takes ids, keys, handles, leases or options: each
// is an error or a miss, nothing is lost, nothing crashes (meant for the sanitizer builds, too).
// KVSHM_FUZZ multiplies the number of inputs; with 1 there are more than a million in all.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "arena/layout.hpp"
#include "support.hpp"

namespace kvshm_test {
namespace {

constexpr std::uint32_t kBlocks = 64;
constexpr std::uint64_t kBytes = 256;

std::uint64_t times(std::uint64_t n) {
  const char* f = std::getenv("KVSHM_FUZZ");
  return f ? std::uint64_t(double(n) * std::atof(f)) : n;
}

class Chance {  // xorshift64*
 public:
  explicit Chance(std::uint64_t seed) : x_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
  std::uint64_t next() {
    x_ ^= x_ >> 12;
    x_ ^= x_ << 25;
    x_ ^= x_ >> 27;
    return x_ * 0x2545f4914f6cdd1dULL;
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  bool one_in(unsigned n) { return below(n) == 0; }
  // A number as callers get it wrong: an edge, a small one, or anything.
  std::uint64_t odd() {
    static const std::uint64_t edges[] = {
        0,          1,          31,         32,         63,          64,   65,
        100,        101,        255,        256,        4095,        4096, 0x7fffffff,
        0x80000000, 0xfffffff0, 0xfffffffe, 0xffffffff, 0x100000000, ~0ull};
    switch (below(4)) {
      case 0:
        return edges[below(std::size(edges))];
      case 1:
        return below(80);
      case 2:
        return std::uint64_t{1} << below(64);
      default:
        return next();
    }
  }
  void fill(void* p, std::size_t n) {
    auto* b = static_cast<unsigned char*>(p);
    for (std::size_t i = 0; i < n; i++) b[i] = static_cast<unsigned char>(next());
  }

 private:
  std::uint64_t x_;
};

// ---- entries -------------------------------------------------------------------------------------

class Caller {
 public:
  Caller(kvshm_arena* a, std::uint64_t seed) : a_(a), r_(seed) {
    for (std::uint32_t i = 0; i < kBlocks; i++) known_.push_back(handle_of(i));
  }

  void one() {
    (this->*kEntries[r_.below(kCount)])();
    calls++;
  }
  void end() {
    for (kvshm_object* o : objects_) kvshm_object_close(o);
    objects_.clear();
  }
  std::uint64_t calls = 0, accepted = 0;

 private:
  static constexpr unsigned kRoom = 24;

  kvshm_handle handle_of(std::uint32_t id) {
    kvshm_handle h{0, id, 0};
    kvshm_handle_of(a_, id, &h);
    return h;
  }
  kvshm_handle handle() {
    kvshm_handle h = r_.one_in(3) ? handle_of(std::uint32_t(r_.below(kBlocks)))
                                  : known_[r_.below(known_.size())];
    if (r_.one_in(5)) h.seq = r_.one_in(2) ? r_.odd() : h.seq + r_.below(3) - 1;
    if (r_.one_in(5)) h.id = std::uint32_t(r_.odd());
    if (r_.one_in(9)) h.zero = std::uint32_t(r_.next());
    return h;
  }
  void remember(const kvshm_handle& h) { known_[r_.below(known_.size())] = h; }
  void handles(std::uint32_t n) {
    for (std::uint32_t i = 0; i < n; i++) h_[i] = handle();
  }
  const kvshm_key* keys(std::uint32_t n) {
    for (std::uint32_t i = 0; i < n; i++) {
      block_key k = key_of(r_.below(150));
      if (r_.one_in(30)) r_.fill(k.data(), 16);
      if (r_.one_in(60)) k.fill(r_.one_in(2) ? 0 : 255);
      std::copy(k.begin(), k.end(), keys_[i]);
    }
    return r_.one_in(50) ? nullptr : keys_;
  }
  std::uint32_t count() { return std::uint32_t(r_.one_in(4) ? r_.below(kRoom + 1) : r_.below(4)); }
  kvshm_lease lease() {
    if (leases_.empty() || r_.one_in(4)) return r_.odd() ^ (r_.one_in(2) ? r_.next() << 32 : 0);
    const std::size_t i = r_.below(leases_.size());
    return leases_[i];  // it may have been released before: that is the point
  }
  void taken(std::int64_t n, kvshm_lease l) {
    if (n <= 0 || !l) return;
    if (leases_.size() < 40)
      leases_.push_back(l);
    else
      std::swap(leases_[r_.below(leases_.size())], l), kvshm_release(a_, l);
  }
  template <class T>
  void outcome(T rc) {
    if (rc >= 0) {
      accepted++;
      return;
    }
    const int code = int(-rc);
    ASSERT_TRUE((code > 0 && code < 200) || (code > 10000 && code < 10030)) << rc;
    ASSERT_NE(kvshm_strerror(code), nullptr);
    ASSERT_NE(kvshm_last_error(), nullptr);
  }
  std::uint32_t flags() { return std::uint32_t(r_.one_in(8) ? r_.odd() : r_.below(16)); }

  void open_null() {
    kvshm_arena* out = nullptr;
    kvshm_options o = KVSHM_OPTIONS_INIT;
    o.size = r_.odd();
    o.bytes = r_.odd();
    o.block_bytes = r_.odd();
    o.pin = std::uint32_t(r_.below(5));
    char name[80] = {};
    r_.fill(name, r_.below(79));
    outcome(kvshm_attach(r_.one_in(9) ? nullptr : &out, r_.one_in(9) ? nullptr : name, &o));
    ASSERT_EQ(out, nullptr);
  }
  void allocate() {
    kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
    if (r_.one_in(3)) {
      if (r_.one_in(4)) o.size = r_.odd();
      o.flags = flags();
      o.parts = std::uint32_t(r_.one_in(2) ? r_.odd() : r_.below(4));
      o.priority = std::uint32_t(r_.one_in(2) ? r_.odd() : 50);
      o.tenant = std::uint32_t(r_.one_in(2) ? r_.odd() : 0);
      o.parent = handle();
    }
    kvshm_key room[4];
    kvshm_evicted ev{sizeof ev, room, r_.below(5), 0};
    if (r_.one_in(20)) ev.size = r_.odd();
    // more than there is room for in `out` only where it must be refused
    const std::uint32_t n =
        r_.one_in(20) ? std::uint32_t(kBlocks + 1 + r_.below(1u << 30)) : count();
    const kvshm_key* k = n > kRoom || r_.one_in(5) ? nullptr : keys(n);
    const int rc =
        kvshm_allocate(a_, n, k, r_.one_in(4) ? nullptr : &o, r_.one_in(50) ? nullptr : h_,
                       r_.one_in(3) ? nullptr : bytes_, r_.one_in(3) ? nullptr : &ev);
    outcome(rc);
    if (rc == 0 && n <= kRoom)
      for (std::uint32_t i = 0; i < n; i++) remember(h_[i]);
  }
  void join() { outcome(kvshm_fill_join(a_, handle())); }
  void begin() { outcome(kvshm_fill_begin(a_, handle(), part())); }
  void arrive() { outcome(kvshm_fill_arrive(a_, handle(), part())); }
  std::uint32_t part() { return std::uint32_t(r_.one_in(3) ? r_.odd() : r_.below(2)); }
  void publish() { outcome(kvshm_publish(a_, handle())); }
  void register_() {
    const std::uint32_t n = count();
    handles(n);
    kvshm_handle out[kRoom];
    const int policy = int(r_.one_in(9) ? std::int64_t(r_.odd()) : std::int64_t(r_.below(2)));
    const std::int64_t done = kvshm_register(a_, h_, n, r_.one_in(2) ? nullptr : keys(n), policy,
                                             r_.one_in(3) ? h_ : out, bytes_);
    outcome(done);
    for (std::int64_t i = 0; i < done; i++) remember(out[i].seq ? h_[i] : h_[i]);
  }
  void abort() {
    const std::uint32_t n = count();
    handles(n);
    outcome(kvshm_abort(a_, r_.one_in(40) ? nullptr : h_, n));
  }
  void drop() {
    const std::uint32_t n = count();
    handles(n);
    outcome(kvshm_drop(a_, r_.one_in(40) ? nullptr : h_, n));
  }
  void copy_in() {
    unsigned char data[512] = {};
    const std::uint64_t n = r_.one_in(3) ? r_.odd() : r_.below(kBytes + 1);
    const std::uint64_t at = r_.one_in(3) ? r_.odd() : r_.below(kBytes + 1);
    if (n > sizeof data && at <= kBytes && n <= kBytes - at) return;
    outcome(kvshm_copy_in(a_, handle(), at, r_.one_in(50) ? nullptr : data, n));
  }
  void copy_out() {
    unsigned char data[512];
    const std::uint64_t n = r_.one_in(3) ? r_.odd() : r_.below(kBytes + 1);
    outcome(kvshm_copy_out(a_, handle(), r_.one_in(3) ? r_.odd() : r_.below(kBytes + 1),
                           r_.one_in(50) ? nullptr : data, n));
  }
  void acquire() {
    kvshm_handle out{};
    const kvshm_key* k = keys(1);
    outcome(kvshm_acquire(a_, k ? k[0] : nullptr, flags(), r_.one_in(50) ? nullptr : &out));
    if (out.seq) remember(out);
  }
  void upgrade() { outcome(kvshm_upgrade(a_, handle(), flags())); }
  void handle_of_any() {
    kvshm_handle h;
    outcome(kvshm_handle_of(a_, std::uint32_t(r_.odd()), r_.one_in(20) ? nullptr : &h));
  }
  void match() {
    kvshm_lease l = 0;
    kvshm_handle pending;
    const std::uint32_t n = count();
    const std::int64_t got =
        kvshm_match_with(a_, keys(n), n, flags(), r_.next(), r_.one_in(50) ? nullptr : ids_,
                         r_.one_in(50) ? nullptr : &l, r_.one_in(2) ? nullptr : &pending);
    outcome(got);
    taken(got, l);
  }
  void match_plain() {
    kvshm_lease l = 0;
    const std::uint32_t n = count();
    const std::int64_t got = kvshm_match(a_, keys(n), n, ids_, &l);
    outcome(got);
    taken(got, l);
  }
  void scattered() {
    kvshm_lease l = 0;
    const std::uint32_t n = count();
    const std::int64_t got = kvshm_match_scattered(a_, keys(n), n, flags(), 0, ids_, &l);
    outcome(got);
    taken(got, l);
  }
  void scan() {
    kvshm_lease l = 0;
    const std::uint32_t n = count();
    std::uint32_t which[kRoom];
    const std::int64_t got =
        kvshm_scan(a_, keys(n), n, flags(), 0, ids_, r_.one_in(4) ? nullptr : which, &l);
    outcome(got);
    taken(got, l);
  }
  void presence() {
    const std::uint32_t n = count();
    outcome(kvshm_presence(a_, keys(n), n, r_.one_in(50) ? nullptr : bytes_));
  }
  void release() { outcome(kvshm_release(a_, lease())); }
  void trim() { outcome(kvshm_lease_trim(a_, lease(), std::uint32_t(r_.odd()))); }
  void lease_ids() {
    const std::uint32_t cap = count();
    outcome(kvshm_lease_ids(a_, lease(), r_.one_in(40) ? nullptr : ids_, cap));
  }
  void lease_make() {
    const std::uint32_t n = count();
    handles(n);
    kvshm_lease l = 0;
    const int rc = kvshm_lease_make(a_, r_.one_in(40) ? nullptr : h_, n, r_.next(),
                                    r_.one_in(40) ? nullptr : &l);
    outcome(rc);
    taken(rc == 0, l);
  }
  void pin() {
    const std::uint32_t n = count();
    handles(n);
    kvshm_lease l = 0;
    const int rc = kvshm_pin(a_, r_.one_in(40) ? nullptr : h_, n, 0, r_.one_in(40) ? nullptr : &l);
    outcome(rc);
    taken(rc == 0, l);
  }
  void no_cache() { outcome(kvshm_set_no_cache(a_, handle(), int(r_.below(3)) - 1)); }
  void priority() {
    outcome(
        kvshm_set_priority(a_, handle(), std::uint32_t(r_.one_in(2) ? r_.odd() : r_.below(100))));
  }
  void wait() { outcome(kvshm_wait(a_, handle(), 0)); }
  void evict() {
    const std::uint32_t n = count();
    outcome(kvshm_evict(a_, keys(n), n));
  }
  void get_block() {
    kvshm_block_info b{};
    b.size = r_.one_in(4) ? r_.odd() : sizeof b;
    outcome(kvshm_get_block(a_, std::uint32_t(r_.odd()), r_.one_in(40) ? nullptr : &b));
  }
  void get_process() {
    kvshm_process p{};
    p.size = r_.one_in(4) ? r_.odd() : sizeof p;
    outcome(kvshm_get_process(a_, std::uint32_t(r_.odd()), r_.one_in(40) ? nullptr : &p));
  }
  void block_data() {
    const std::uint32_t id = std::uint32_t(r_.odd());
    ASSERT_EQ(kvshm_block_data(a_, id) != nullptr, id < kBlocks);
  }
  void marks() {
    const std::uint32_t n = count();
    handles(n);
    outcome(kvshm_mark_victims(a_, r_.one_in(40) ? nullptr : h_, n));
    outcome(kvshm_elect(a_, std::uint32_t(r_.odd())));
    outcome(kvshm_resign(a_, std::uint32_t(r_.odd())));
  }
  void policy() {
    kvshm_policy p = KVSHM_POLICY_INIT;
    r_.fill(reinterpret_cast<char*>(&p) + sizeof p.size, sizeof p - sizeof p.size);
    p.sample = std::uint32_t(r_.one_in(2) ? r_.odd() : 1 + r_.below(64));
    for (auto& s : p.shift) s = std::uint32_t(r_.one_in(40) ? r_.odd() : r_.below(32));
    for (auto& r : p.rank) r = std::uint32_t(r_.one_in(40) ? r_.odd() : r_.below(101));
    if (!r_.one_in(4)) p.flags &= KVSHM_POLICY_ALL, p.young &= 1023, p.small &= 1023;
    if (r_.one_in(9)) p.size = r_.odd();
    outcome(kvshm_set_policy(a_, r_.one_in(40) ? nullptr : &p));
  }
  void structs() {
    kvshm_stats s{};
    s.size = r_.one_in(2) ? r_.odd() : sizeof s;
    outcome(kvshm_get_stats(a_, r_.one_in(9) ? nullptr : &s));
    kvshm_info i{};
    i.size = r_.one_in(2) ? r_.odd() : sizeof i;
    outcome(kvshm_get_info(a_, r_.one_in(9) ? nullptr : &i));
    kvshm_reap_report p{};
    p.size = r_.one_in(2) ? r_.odd() : sizeof p;
    outcome(kvshm_reap(a_, r_.one_in(9) ? nullptr : &p));
  }
  void object() {
    if (!objects_.empty() && r_.one_in(2)) {
      const std::size_t i = r_.below(objects_.size());
      kvshm_object* o = objects_[i];
      char data[300] = {};
      kvshm_piece pieces[8];
      switch (r_.below(5)) {
        case 0:
          return outcome(kvshm_object_commit(o));
        case 1:
          return outcome(kvshm_object_write(o, r_.odd(), data, r_.below(sizeof data)));
        case 2:
          return outcome(kvshm_object_read(o, r_.odd(), data, r_.below(sizeof data)));
        case 3:
          return outcome(kvshm_object_pieces(o, pieces, r_.below(9)));
        default:
          kvshm_object_close(o);
          objects_.erase(objects_.begin() + std::ptrdiff_t(i));
          return;
      }
    }
    kvshm_object* o = nullptr;
    const kvshm_key* k = keys(1);
    const int rc = r_.one_in(2)
                       ? kvshm_object_get(a_, k ? k[0] : nullptr, r_.one_in(40) ? nullptr : &o)
                       : kvshm_object_create(a_, k ? k[0] : nullptr,
                                             r_.one_in(2) ? r_.odd() : 1 + r_.below(2000), nullptr,
                                             r_.one_in(40) ? nullptr : &o);
    outcome(rc);
    ASSERT_EQ(rc == 0, o != nullptr);
    if (o && objects_.size() >= 4) kvshm_object_close(o), o = nullptr;
    if (o) objects_.push_back(o);
  }
  void key_functions() {
    std::uint8_t key[32], mark[16], out[16];
    std::uint32_t tokens[64];
    char text[8][40] = {}, buf[200];
    for (auto& t : text) r_.fill(t, r_.below(39));
    kvshm_identity id = KVSHM_IDENTITY_INIT;
    id.model = text[0], id.weights = text[1], id.dtype = r_.one_in(3) ? nullptr : text[2];
    id.layout = text[3], id.parallel = text[4], id.space = text[5];
    id.block_tokens = std::uint32_t(r_.one_in(2) ? 16 : r_.odd());
    id.flags = std::uint32_t(r_.one_in(9) ? r_.odd() : r_.below(2));
    if (r_.one_in(9)) id.size = r_.below(sizeof id);  // a longer one is the caller's word
    outcome(kvshm_identity_derive(&id, key, mark));
    outcome(kvshm_identity_text(&id, buf, r_.below(sizeof buf)));
    kvshm_extra extra[3];
    for (auto& e : extra)
      e = {std::uint32_t(r_.one_in(3) ? r_.odd() : 1 + r_.below(5)), std::uint32_t(r_.below(40)),
           r_.one_in(9) ? nullptr : text[6]};
    outcome(kvshm_extra_digest(key, extra, r_.below(4), out));
    outcome(kvshm_keys_tokens(key, out, r_.one_in(2) ? nullptr : mark, tokens_of(tokens),
                              r_.below(65), std::uint32_t(r_.one_in(2) ? r_.odd() : 4), keys_,
                              r_.below(kRoom)));
    const std::size_t width = r_.one_in(2) ? r_.odd() : 32;
    outcome(kvshm_keys_hashes(key, nullptr, bytes_, width, width <= 128 ? r_.below(3) : r_.below(2),
                              keys_));
  }
  const std::uint32_t* tokens_of(std::uint32_t (&t)[64]) {
    for (auto& x : t) x = std::uint32_t(r_.next());
    return r_.one_in(30) ? nullptr : t;
  }

  using Entry = void (Caller::*)();
  static const Entry kEntries[];
  static const unsigned kCount;

  kvshm_arena* a_;
  Chance r_;
  std::vector<kvshm_handle> known_;
  std::vector<kvshm_lease> leases_;
  std::vector<kvshm_object*> objects_;
  kvshm_handle h_[kRoom] = {};
  kvshm_key keys_[kRoom] = {};
  std::uint32_t ids_[kRoom] = {};
  std::uint8_t bytes_[kRoom * 16] = {};
};

const Caller::Entry Caller::kEntries[] = {
    &Caller::allocate,    &Caller::allocate,      &Caller::join,          &Caller::begin,
    &Caller::arrive,      &Caller::publish,       &Caller::register_,     &Caller::register_,
    &Caller::abort,       &Caller::drop,          &Caller::copy_in,       &Caller::copy_out,
    &Caller::acquire,     &Caller::upgrade,       &Caller::handle_of_any, &Caller::match,
    &Caller::match_plain, &Caller::scattered,     &Caller::scan,          &Caller::presence,
    &Caller::release,     &Caller::release,       &Caller::trim,          &Caller::lease_ids,
    &Caller::lease_make,  &Caller::pin,           &Caller::no_cache,      &Caller::priority,
    &Caller::wait,        &Caller::evict,         &Caller::get_block,     &Caller::get_process,
    &Caller::block_data,  &Caller::marks,         &Caller::policy,        &Caller::structs,
    &Caller::object,      &Caller::key_functions, &Caller::open_null};
const unsigned Caller::kCount = unsigned(std::size(kEntries));

TEST(BadInput, EveryEntry) {
  Pool pool({.blocks = kBlocks, .block_bytes = kBytes});
  kvshm_arena* other = pool.another();  // keeps four blocks through all of it
  const keys_t kept = keys_of(1000, 4);
  handles_t held;
  for (const block_key& k : kept) held.push_back(make_held(other, k));
  std::uint64_t calls = 0, accepted = 0;
  for (std::uint64_t seed = 0; seed < times(20); seed++) {
    kvshm_arena* a = attach(pool.name);
    Caller caller(a, seed);
    for (unsigned i = 0; i < 60000 && !::testing::Test::HasFatalFailure(); i++) caller.one();
    caller.end();
    calls += caller.calls;
    accepted += caller.accepted;
    ASSERT_EQ(broken(other), "") << "seed " << seed;
    ASSERT_EQ(kvshm_close(a, 1000), 0);  // gives back whatever it still had
    const kvshm_stats s = stats(other);
    ASSERT_EQ(s.blocks_held, held.size()) << "seed " << seed;
    ASSERT_EQ(s.blocks_filling + s.blocks_evicting, 0u) << "seed " << seed;
    ASSERT_EQ(broken(other), "") << "seed " << seed;
    for (std::size_t i = 0; i < held.size(); i++)
      ASSERT_TRUE(payload_right(other, held[i].id, kept[i]));
  }
  EXPECT_GE(calls, times(1'000'000));
  EXPECT_GT(accepted, calls / 5) << "the calls get deep enough to find something";
  EXPECT_LT(accepted, calls) << "and some of them are wrong";
  RecordProperty("calls", std::to_string(calls));
}

TEST(BadInput, ClosedAndForeignPointers) {
  Pool pool({.blocks = kBlocks, .block_bytes = kBytes});
  kvshm_arena* a = attach(pool.name);
  ASSERT_EQ(kvshm_close(a, 1000), 0);
  Caller caller(pool.a, 1);
  alignas(64) unsigned char nothing[4096] = {};
  for (kvshm_arena* p :
       {static_cast<kvshm_arena*>(nullptr), a, reinterpret_cast<kvshm_arena*>(nothing)}) {
    const int want = p == a ? -KVSHM_ECLOSED : -EINVAL;
    kvshm_handle h = {1, 0, 0};
    std::uint32_t id;
    kvshm_lease lease;
    const block_key key = key_of(1);
    EXPECT_EQ(kvshm_allocate(p, 1, nullptr, nullptr, &h, nullptr, nullptr), want);
    EXPECT_EQ(kvshm_match(p, raw(key), 1, &id, &lease), want);
    EXPECT_EQ(kvshm_release(p, 1), want);
    EXPECT_EQ(kvshm_drop(p, &h, 1), want);
    EXPECT_EQ(kvshm_abort(p, &h, 1), want);
    EXPECT_EQ(kvshm_upgrade(p, h, 0), want);
    EXPECT_EQ(kvshm_wait(p, h, 10), want);
    EXPECT_EQ(kvshm_reap(p, nullptr), want);
    EXPECT_EQ(kvshm_tick(p), want);
    EXPECT_EQ(kvshm_is_valid(p, nullptr, nullptr), want);
    EXPECT_EQ(kvshm_close(p, 0), want);
    EXPECT_EQ(kvshm_block_data(p, 0), nullptr);
    EXPECT_EQ(kvshm_block_table(p, nullptr), nullptr);
  }
}

// ---- attach --------------------------------------------------------------------------------------

class Object {  // the arena's file, to be damaged from outside
 public:
  explicit Object(const std::string& name)
      : fd_(open(("/dev/shm/kvshm." + name).c_str(), O_RDWR | O_CLOEXEC)) {
    size = lseek(fd_, 0, SEEK_END);
  }
  Object(const Object&) = delete;
  ~Object() { close(fd_); }
  void read(void* p, std::size_t n, off_t at) { ASSERT_EQ(pread(fd_, p, n, at), ssize_t(n)); }
  void write(const void* p, std::size_t n, off_t at) {
    ASSERT_EQ(pwrite(fd_, p, n, at), ssize_t(n));
  }
  void cut(off_t n) { ASSERT_EQ(ftruncate(fd_, n), 0); }
  off_t size;

 private:
  int fd_;
};

TEST(BadInput, Attach) {
  Pool pool({.blocks = kBlocks, .block_bytes = kBytes});
  make_cached(pool.a, key_of(1));
  pool.leave();
  Object file(pool.name);
  std::vector<unsigned char> good(sizeof(kvshm::Superblock)), bad;
  file.read(good.data(), good.size(), 0);
  Chance r(7);
  std::uint64_t refused = 0, joined = 0;
  const std::uint64_t rounds = times(60'000);
  for (std::uint64_t n = 0; n < rounds && !HasFatalFailure(); n++) {
    bad = good;
    off_t length = file.size;
    // The magic and the life of the arena stay, mostly, so that the check comes to the rest.
    switch (r.below(5)) {
      case 0:  // a bit
        bad[8 + r.below(56)] ^= static_cast<unsigned char>(1 << r.below(8));
        break;
      case 1:  // a number of the geometry
      {
        const std::uint64_t v = r.odd();
        std::memcpy(&bad[offsetof(kvshm::Superblock, geometry) + 8 * r.below(17)], &v, 8);
        break;
      }
      case 2:  // some bytes anywhere but at the magic and `dead`
        for (std::uint64_t i = r.below(40); i-- > 0;)
          bad[68 + r.below(bad.size() - 68)] = static_cast<unsigned char>(r.next());
        break;
      case 3:  // all of it
        r.fill(bad.data() + (r.one_in(2) ? 8 : 0), bad.size() - 8);
        if (!(bad[0] | bad[1] | bad[2])) bad[0] = 1;
        // Marked dead is waited for, 20 ms each: a few of these will do.
        if (!r.one_in(500)) std::memset(&bad[offsetof(kvshm::Superblock, dead)], 0, 4);
        break;
      default:  // cut short, or longer
        length = off_t(1 + r.below(std::uint64_t(file.size) + 4096));
    }
    file.write(bad.data(), bad.size(), 0);
    if (length != file.size) file.cut(length);
    kvshm_arena* a = nullptr;
    kvshm_options o = KVSHM_OPTIONS_INIT;
    o.flags = KVSHM_NO_HELPER;
    o.timeout_ms = 1;
    o.pin = KVSHM_OFF;
    const int rc = kvshm_attach(&a, pool.name.c_str(), &o);
    if (rc) {
      ASSERT_EQ(a, nullptr);
      ASSERT_TRUE(rc == -KVSHM_ELAYOUT || rc == -EBADMSG || rc == -KVSHM_ENOTREADY) << rc;
      ASSERT_STRNE(kvshm_last_error(), "");
      refused++;
    } else {  // what was changed is not what an arena is understood by
      joined++;
      present(a, key_of(1));
      ASSERT_EQ(kvshm_close(a, 1000), 0);
    }
    if (length != file.size) file.cut(file.size);
  }
  file.write(good.data(), good.size(), 0);
  EXPECT_GT(refused, rounds / 3);
  EXPECT_GT(joined, rounds / 100);
}

// ---- shared memory that somebody scribbled over --------------------------------------------------

TEST(BadInput, ScribbledMetadata) {
  Chance r(11);
  std::uint64_t calls = 0;
  for (std::uint64_t n = 0; n < times(150) && !HasFatalFailure(); n++) {
    Pool pool({.blocks = kBlocks, .block_bytes = kBytes});
    for (std::uint64_t k = 0; k < 40; k++) make_cached(pool.a, key_of(k));
    kvshm_info info = KVSHM_INFO_INIT;
    ASSERT_EQ(kvshm_get_info(pool.a, &info), 0);
    Object file(pool.name);
    // Everything but the superblock's first part (dead), the slot records of the living, and the
    // holders and life of each word, whose damage is a hold that nobody gives back.
    kvshm::Geometry g;
    file.read(&g, sizeof g, offsetof(kvshm::Superblock, geometry));
    auto scribble = [&](std::uint64_t from, std::uint64_t to) {
      unsigned char junk[64];
      for (std::uint64_t i = r.below(200); i-- > 0;) {
        r.fill(junk, sizeof junk);
        if (r.one_in(3)) std::memset(junk, r.one_in(2) ? 0 : 255, sizeof junk);
        const std::uint64_t len = 1 + r.below(sizeof junk);
        file.write(junk, len, off_t(from + r.below(to - from - len)));
      }
    };
    if (r.one_in(2)) scribble(g.hot_off, g.cold_off);
    if (r.one_in(2)) scribble(g.cold_off, g.index_off);
    if (r.one_in(2)) scribble(g.index_off, g.free_off);
    if (r.one_in(2)) scribble(g.free_off, g.ghost_off);
    if (r.one_in(2)) scribble(g.ghost_off, g.data_off);
    if (r.one_in(2)) scribble(offsetof(kvshm::Superblock, policy), sizeof(kvshm::Superblock));
    const std::int64_t begun = now_ms();
    kvshm_arena* a = nullptr;
    kvshm_options o = options({});
    o.timeout_ms = 500;
    if (kvshm_attach(&a, pool.name.c_str(), &o) != 0) continue;
    Caller caller(a, n);
    for (unsigned i = 0; i < 1500 && !HasFatalFailure() && now_ms() < begun + 2000; i++)
      caller.one();
    caller.end();
    calls += caller.calls;
    kvshm_is_valid(a, nullptr, nullptr);
    kvshm_close(a, 2000);
  }
  RecordProperty("calls", std::to_string(calls));
}

}  // namespace
}  // namespace kvshm_test
