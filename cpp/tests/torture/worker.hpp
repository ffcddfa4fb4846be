// SPDX-License-Identifier: Apache-2.0
// A worker: attaches, and does what engines do until it dies.
#pragma once
#include <kvshm.h>

#include <string>
#include <vector>

#include "random.hpp"
#include "shape.hpp"
#include "shared.hpp"

namespace torture {

struct Held {  // a single hold
  kvshm_handle h;
  block_key key;
};

struct Leased {
  kvshm_lease lease = 0;
  std::vector<Held> blocks;
};

struct Fill {
  kvshm_handle h;
  block_key key;
  std::uint32_t parts = 1;
  std::uint32_t tried = 0;  // slices that we wrote, or found begun
  std::uint32_t looks = 0;  // times we came by and could not publish
  bool mine = false;        // allocated here, so register it; else publish
  bool guessed = false;     // joined without knowing whose it is, and of which key
};

struct Seen {  // a fill of somebody's, or a block of an earlier hold
  kvshm_handle h;
  block_key key;
};

// One thread's view: what it holds, fills and remembers.
class Hand {
 public:
  Hand(Shared& shared, Record& record, const Shape& shape, const std::string& name,
       std::uint64_t seed, unsigned thread);
  void use(kvshm_arena* arena) { a = arena; }
  bool reopen();  // closes, if open, and opens; false: could not
  void work();    // operations until the round ends
  void forget();  // the arena is closed: nothing is held any more

  // Is every word of a held block what its key and life ask for? At once a violation if not.
  bool check(const kvshm_handle& h, const block_key& key, const char* when);
  void check_everything(const char* when);
  // A call must answer 0 (or more), or one of the codes given.
  bool expect(std::int64_t rc, std::initializer_list<int> also, const char* call);
  void note(std::uint32_t what, const kvshm_handle& h, std::int64_t rc);
  void tally(Tally t, std::uint64_t n = 1) {
    record.tallies[t].fetch_add(n, std::memory_order_relaxed);
  }

  // The slice is begun: writes it, and perhaps dies over it.
  void transfer(const Fill& f, std::uint32_t part);
  std::uint32_t room() const;  // blocks that it may still take, of its share
  block_key some_key();
  std::uint32_t some_chain();
  std::uint32_t some_place();
  void remember(std::vector<Seen>& where, const kvshm_handle& h, const block_key& key);
  Held take(std::vector<Held>& from);

  Shared& shared;
  Record& record;
  const Shape& shape;
  const std::string& name;
  kvshm_arena* a = nullptr;
  Rng rng;
  const unsigned thread;
  std::vector<Held> held;
  std::vector<Leased> leases;
  std::vector<Fill> fills;
  std::vector<Seen> pending, past;

 private:
  bool pause_here();
};

kvshm_options open_options(const Shape& shape, bool helper);

// The life of a worker, in its own process; ends with its death, or with _exit.
// noexcept: an exception ends it where it was thrown, not in the driver's main.
[[noreturn]] void live(Shared& shared, Record& record, const Shape& shape,
                       const std::string& name) noexcept;

}  // namespace torture
