#include "player.hpp"

#include <cstring>

namespace kvshm_fuzz {

Player::Player(Scene& s, Feed& f, bool wild)
    : s_(s),
      f_(f),
      wild_(wild),
      known_(s.handles()),
      blocks_(s.victim()->impl->nblocks),
      block_bytes_(s.victim()->impl->block_bytes) {
  leases_.reserve(16);
}

Player::~Player() {
  for (kvshm_object* o : objects_) kvshm_object_close(o);
}

void Player::one() {
  const std::uint64_t begun = host::now_ms();
  limit_ms_ = 0;
  switch (f_.below(26)) {
    case 1:
    case 2:
    case 3:
      allocate();
      break;
    case 4:
    case 5:
      register_();
      break;
    case 6:
    case 7:
      fill_call();
      break;
    case 8:
    case 9:
      hold_call();
      break;
    case 10:
    case 11:
      handles_call();
      break;
    case 12:
    case 13:
    case 14:
      match();
      break;
    case 15:
    case 16:
      lease_call();
      break;
    case 17:
      copy();
      break;
    case 18:
    case 19:
      object();
      break;
    case 20:
      look();
      break;
    case 21:
      structs();
      break;
    case 22:
      policy();
      break;
    case 23:
    case 24:
    case 25:
      sweep();
      break;
    default:
      return;
  }
  calls_++;
  // The clock stands still but for waits: what a call may take is its own limit, and the library's
  // own short ones (a lock for 50 ms, a policy writer for as long).
  const std::uint64_t took = host::now_ms() - begun;
  if (took > limit_ms_ + 500) found("a call took longer than its limit", (long long)took);
}

void Player::outcome(std::int64_t rc) {
  if (rc >= 0) return;
  const std::int64_t code = -rc;
  if (!(code > 0 && code < 200) && !(code >= KVSHM_ECLOSED && code <= KVSHM_ETOOLARGE))
    found("a code that the header does not name", (long long)rc);
  if (!kvshm_strerror(int(code)) || !kvshm_last_error()) found("an error without a text");
}

// ---- arguments ----------------------------------------------------------------------------------

std::uint32_t Player::count() {
  const unsigned n = f_.byte();
  return n < 200 ? n % 6 : n < 250 ? n % 25 : 96 + n - 250;
}

kvshm_handle Player::handle() {
  const unsigned how = f_.byte();
  kvshm_handle h{0, how, 0};
  if (how < 192)
    h = known_[how % known_.size()];
  else if (how < 224 || !wild_)
    kvshm_handle_of(a(), how, &h);
  else
    h = {f_.odd(), std::uint32_t(f_.odd()), f_.byte()};
  return h;
}

Player::Room<kvshm_handle> Player::handles(std::uint32_t n) {
  Room<kvshm_handle> h(new kvshm_handle[n]);
  for (std::uint32_t i = 0; i < n; i++) h[i] = handle();
  return h;
}

void Player::remember(const kvshm_handle& h) { known_[at_++ % known_.size()] = h; }

void Player::key(kvshm_key out) {
  const unsigned how = f_.byte();
  key_of(how % kKeys, out);
  if (wild_ && how >= 240) f_.bytes(out, 16);
}

// A run of keys, as chains are asked for, or each its own.
Player::Room<kvshm_key> Player::keys(std::uint32_t n) {
  Room<kvshm_key> k(new kvshm_key[n]);
  const bool run = f_.one_in(2);
  unsigned from = run ? f_.byte() : 0;
  for (std::uint32_t i = 0; i < n; i++)
    if (run)
      key_of(from++ % kKeys, k[i]);
    else
      key(k[i]);
  return k;
}

kvshm_lease Player::lease() {
  const unsigned how = f_.byte();
  if (leases_.empty() || (wild_ && how >= 224)) return f_.odd() ^ f_.odd() << 32;
  return leases_[how % leases_.size()];
}

void Player::taken(std::int64_t got, std::uint32_t n, kvshm_lease l) {
  outcome(got);
  if (got > std::int64_t(n)) found("more hits than keys", (long long)got, n);
  if ((got > 0) != (l != 0)) found("hits without a lease, or a lease without hits", (long long)got);
  if (!l) return;
  if (leases_.size() < 16)
    leases_.push_back(l);
  else
    outcome(kvshm_release(a(), l));
}

std::uint32_t Player::flags() {
  return std::uint32_t(wild_ && f_.one_in(8) ? f_.odd() : f_.below(16));
}

std::uint32_t Player::part() {
  const unsigned how = f_.byte();
  return how < 200 ? how % 2 : how < 240 ? how % 33 : std::uint32_t(f_.odd());
}

// ---- filling ------------------------------------------------------------------------------------

void Player::allocate() {
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  const unsigned how = f_.byte();
  if (how & 1) o.flags = flags();
  if (how & 2) o.parts = part();
  if (how & 4) o.timeout_ms = limit_ms_ = f_.byte();
  if (how & 8) o.priority = std::uint32_t(f_.odd());
  if (how & 16) o.tenant = std::uint32_t(f_.odd());
  if (how & 32) o.parent = handle();
  if (rarely(9)) o.size = f_.odd();
  std::uint32_t n = count();
  const bool too_many = n > blocks_ || rarely(20);
  if (too_many) n = blocks_ + 1 + std::uint32_t(f_.odd() % 0x7fffffff);  // refused, or no room here
  const std::uint32_t room = too_many ? 0 : n;
  Room<kvshm_handle> out(new kvshm_handle[room]);
  Room<kvshm_key> k = keys(too_many ? 0 : n);
  Room<std::uint8_t> status(new std::uint8_t[room]);
  const std::size_t cap = f_.below(5);
  Room<kvshm_key> gone(new kvshm_key[cap]);
  kvshm_evicted ev{sizeof ev, gone.get(), cap, 0};
  if (rarely(9)) ev.size = f_.odd();
  if (rarely(9)) ev.keys = nullptr;
  const int rc = kvshm_allocate(a(), n, (how & 64) || too_many ? nullptr : k.get(),
                                f_.one_in(3) ? nullptr : &o, rarely(20) ? nullptr : out.get(),
                                f_.one_in(3) ? nullptr : status.get(), how & 128 ? nullptr : &ev);
  outcome(rc);
  if (rc == 0 && too_many) found("more blocks than there are", n);
  for (std::uint32_t i = 0; rc == 0 && i < n; i++) {
    if (out[i].id >= blocks_) found("a block that does not exist", out[i].id);
    remember(out[i]);
  }
}

void Player::register_() {
  const std::uint32_t n = count();
  Room<kvshm_handle> h = handles(n), out(new kvshm_handle[n]);
  const bool keyed = f_.one_in(2);
  Room<kvshm_key> k = keys(keyed ? n : 0);
  Room<std::uint8_t> results(new std::uint8_t[n]);
  const int policy = rarely(9) ? int(f_.odd()) : int(f_.below(2));
  const std::int64_t done =
      kvshm_register(a(), rarely(20) ? nullptr : h.get(), n, keyed ? k.get() : nullptr, policy,
                     f_.one_in(3) ? h.get() : out.get(), f_.one_in(3) ? nullptr : results.get());
  outcome(done);
  if (done > std::int64_t(n)) found("more registered than given", (long long)done);
}

void Player::fill_call() {
  const kvshm_handle h = handle();
  switch (f_.below(5)) {
    case 0:
      return outcome(kvshm_fill_join(a(), h));
    case 1:
      return outcome(kvshm_fill_begin(a(), h, part()));
    case 2:
      return outcome(kvshm_fill_arrive(a(), h, part()));
    case 3:
      return outcome(kvshm_publish(a(), h));
    default:
      limit_ms_ = f_.byte();
      return outcome(kvshm_wait(a(), h, std::uint32_t(limit_ms_)));
  }
}

// ---- holding ------------------------------------------------------------------------------------

void Player::hold_call() {
  switch (f_.below(5)) {
    case 0: {
      kvshm_key k;
      key(k);
      kvshm_handle out{0, 0, 0};
      outcome(kvshm_acquire(a(), rarely(20) ? nullptr : k, flags(), rarely(20) ? nullptr : &out));
      if (out.seq && out.id >= blocks_) found("a block that does not exist", out.id);
      if (out.seq) remember(out);
      return;
    }
    case 1:
      return outcome(kvshm_upgrade(a(), handle(), flags()));
    case 2:
      return outcome(kvshm_set_no_cache(a(), handle(), int(f_.below(3)) - 1));
    case 3: {
      const kvshm_handle h = handle();
      return outcome(kvshm_set_priority(a(), h, std::uint32_t(f_.odd())));
    }
    default: {
      kvshm_handle h;
      const auto id = std::uint32_t(f_.odd());
      return outcome(kvshm_handle_of(a(), id, rarely(20) ? nullptr : &h));
    }
  }
}

void Player::handles_call() {
  const std::uint32_t n = count();
  Room<kvshm_handle> h = handles(n);
  const kvshm_handle* p = rarely(20) ? nullptr : h.get();
  kvshm_lease l = 0;
  int rc;
  switch (f_.below(5)) {
    case 0:
      return outcome(kvshm_drop(a(), p, n));
    case 1:
      return outcome(kvshm_abort(a(), p, n));
    case 2:
      s_.marks_written();
      return outcome(kvshm_mark_victims(a(), p, n));
    case 3:
      rc = kvshm_lease_make(a(), p, n, f_.byte(), rarely(20) ? nullptr : &l);
      break;
    default:
      rc = kvshm_pin(a(), p, n, f_.byte(), rarely(20) ? nullptr : &l);
  }
  outcome(rc);
  if (rc == 0) taken(n, n, l);
}

void Player::match() {
  const std::uint32_t n = count();
  Room<kvshm_key> k = keys(n);
  Room<std::uint32_t> ids(new std::uint32_t[n]), which(new std::uint32_t[n]);
  Room<std::uint8_t> mask(new std::uint8_t[n]);
  const kvshm_key* kp = rarely(20) ? nullptr : k.get();
  std::uint32_t* ip = rarely(20) ? nullptr : ids.get();
  kvshm_lease l = 0;
  kvshm_lease* lp = rarely(20) ? nullptr : &l;
  kvshm_handle pending{0, 0, 0};
  const unsigned how = f_.below(6);
  std::int64_t got = 0;
  switch (how) {
    case 0:
      got = kvshm_match(a(), kp, n, ip, lp);
      break;
    case 1:
      got = kvshm_match_with(a(), kp, n, flags(), f_.byte(), ip, lp, &pending);
      if (pending.seq) remember(pending);
      break;
    case 2:
      got = kvshm_match_scattered(a(), kp, n, flags(), f_.byte(), ip, lp);
      break;
    case 3:
      got =
          kvshm_scan(a(), kp, n, flags(), f_.byte(), ip, f_.one_in(2) ? nullptr : which.get(), lp);
      break;
    case 4:
      return outcome(kvshm_presence(a(), kp, n, rarely(20) ? nullptr : mask.get()));
    default:
      return outcome(kvshm_evict(a(), kp, n));
  }
  taken(got, n, l);
  for (std::int64_t i = 0; i < got; i++) {
    const std::uint32_t id = ids[std::size_t(i)];
    if (id >= blocks_ && !(how == 2 && id == KVSHM_NONE)) found("a block that does not exist", id);
  }
}

void Player::lease_call() {
  const kvshm_lease l = lease();
  switch (f_.below(3)) {
    case 0:
      return outcome(kvshm_release(a(), l));
    case 1:
      return outcome(kvshm_lease_trim(a(), l, count()));
    default: {
      const std::uint32_t cap = count();
      Room<std::uint32_t> ids(new std::uint32_t[cap]);
      return outcome(kvshm_lease_ids(a(), l, rarely(20) ? nullptr : ids.get(), cap));
    }
  }
}

// ---- bytes --------------------------------------------------------------------------------------

void Player::copy() {
  const kvshm_handle h = handle();
  const std::uint64_t at = f_.odd(), n = f_.odd();
  if (n > 65536 && n <= block_bytes_) return;
  const std::uint64_t room = n <= block_bytes_ ? n : 0;  // more is refused before it is touched
  Room<char> data(new char[room]());
  char* p = rarely(20) ? nullptr : data.get();
  if (f_.one_in(2))
    outcome(kvshm_copy_in(a(), h, at, p, n));
  else
    outcome(kvshm_copy_out(a(), h, at, p, n));
  const auto id = std::uint32_t(f_.odd());
  if ((kvshm_block_data(a(), id) != nullptr) != (id < blocks_ && block_bytes_))
    found("a block's address", id);
}

void Player::object() {
  const unsigned how = f_.byte();
  kvshm_key k;
  if (objects_.empty() || how < 96) {
    kvshm_object* o = nullptr;
    key(k);
    const int rc = how & 1 ? kvshm_object_create(a(), k, how & 2 ? f_.odd() : 1 + f_.two() % 2000u,
                                                 nullptr, &o)
                           : kvshm_object_get(a(), how & 2 ? k : (key_of(42, k), k), &o);
    outcome(rc);
    if ((rc == 0) != (o != nullptr)) found("success without an object", rc);
    if (o) objects_.push_back(o);
    return;
  }
  kvshm_object* o = objects_[how % objects_.size()];
  kvshm_piece pieces[4];
  const std::uint64_t at = f_.odd(), n = f_.two() % 2048u;
  Room<char> data(new char[n]());
  switch (f_.below(6)) {
    case 0:
      return outcome(kvshm_object_commit(o));
    case 1:
      return outcome(kvshm_object_write(o, at, data.get(), n));
    case 2:
      return outcome(kvshm_object_read(o, at, data.get(), n));
    case 3:
      return outcome(kvshm_object_read(o, 0, data.get(),
                                       kvshm_object_bytes(o) < n ? kvshm_object_bytes(o) : n));
    case 4: {
      const std::int64_t got = kvshm_object_pieces(o, pieces, f_.below(5));
      outcome(got);
      if (got > std::int64_t(blocks_)) found("more pieces than blocks", (long long)got);
      if ((got == 1) != (kvshm_object_data(o) != nullptr)) found("an object in one piece");
      return;
    }
    default:
      kvshm_object_close(o);
      objects_.erase(objects_.begin() + std::ptrdiff_t(how % objects_.size()));
  }
}

// ---- looking after it ---------------------------------------------------------------------------

void Player::look() {
  kvshm_block_info b{};
  b.size = rarely(4) ? f_.odd() : sizeof b;
  const auto id = std::uint32_t(f_.one_in(2) ? f_.odd() : f_.byte());
  outcome(kvshm_get_block(a(), id, rarely(20) ? nullptr : &b));
  kvshm_process p{};
  p.size = rarely(4) ? f_.odd() : sizeof p;
  const auto slot = std::uint32_t(f_.one_in(2) ? f_.odd() : f_.below(48));
  const int rc = kvshm_get_process(a(), slot, &p);
  outcome(rc);
  if (rc == 0 && std::memchr(p.label, 0, sizeof p.label) == nullptr) found("a label without end");
  std::uint64_t n = 0;
  if (!kvshm_block_table(a(), &n) || n != blocks_) found("the block table", (long long)n);
}

void Player::structs() {
  kvshm_stats s{};
  s.size = rarely(2) ? f_.odd() : sizeof s;
  outcome(kvshm_get_stats(a(), rarely(9) ? nullptr : &s));
  outcome(kvshm_get_own_stats(a(), rarely(9) ? nullptr : &s));
  kvshm_info i{};
  i.size = rarely(2) ? f_.odd() : sizeof i;
  outcome(kvshm_get_info(a(), rarely(9) ? nullptr : &i));
  kvshm_reap_report r{};
  r.size = rarely(2) ? f_.odd() : sizeof r;
  outcome(kvshm_reap(a(), rarely(9) ? nullptr : &r));
}

void Player::policy() {
  kvshm_policy p = KVSHM_POLICY_INIT;
  if (f_.one_in(3)) {
    if (rarely(4)) p.size = f_.odd();
    outcome(kvshm_get_policy(a(), rarely(20) ? nullptr : &p));
    return;
  }
  f_.bytes(p.name, 8);
  p.sample = std::uint32_t(wild_ ? f_.odd() : 1 + f_.below(64));
  p.flags = std::uint32_t(rarely(8) ? f_.odd() : f_.below(KVSHM_POLICY_ALL + 1));
  p.young = std::uint32_t(f_.below(1200));
  p.small = std::uint32_t(f_.below(1200));
  p.age_period = std::uint32_t(f_.odd());
  for (auto& s : p.shift) s = std::uint32_t(rarely(8) ? f_.odd() : f_.below(32));
  for (auto& r : p.rank) r = std::uint32_t(rarely(8) ? f_.odd() : f_.below(101));
  if (rarely(9)) p.size = f_.odd();
  outcome(kvshm_set_policy(a(), rarely(20) ? nullptr : &p));
}

void Player::sweep() {
  std::uint64_t expected, actual;
  switch (f_.below(7)) {
    case 0:
      return outcome(kvshm_clear(a()));
    case 1:
      return outcome(kvshm_reset_inactive(a(), &expected, rarely(9) ? nullptr : &actual));
    case 2:
      return outcome(kvshm_tick(a()));
    case 3:
    case 4:
      return outcome(kvshm_is_valid(
          a(), [](int, std::uint32_t, const char* what, void*) { (void)std::strlen(what); },
          nullptr));
    case 5:
      return outcome(kvshm_marks_left(a()));
    default:
      return structs();
  }
}

}  // namespace kvshm_fuzz
