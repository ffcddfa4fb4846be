// Plays a process: each byte of the input is a call of the C API, what follows are its arguments.
#pragma once
#include <memory>
#include <vector>

#include "feed.hpp"
#include "scene.hpp"

namespace kvshm_fuzz {

class Player {
 public:
  // wild: arguments of any kind, else mostly sensible ones.
  Player(Scene& s, Feed& f, bool wild);
  Player(const Player&) = delete;
  ~Player();
  void one();  // one call, or nothing
  unsigned calls() const { return calls_; }

 private:
  template <class T>
  using Room = std::unique_ptr<T[]>;  // exactly so many: AddressSanitizer watches the end

  kvshm_arena* a() { return s_.victim(); }
  bool rarely(unsigned n) { return wild_ && f_.one_in(n); }
  std::uint32_t count();
  kvshm_handle handle();
  Room<kvshm_handle> handles(std::uint32_t n);
  void remember(const kvshm_handle& h);
  void key(kvshm_key out);
  Room<kvshm_key> keys(std::uint32_t n);
  kvshm_lease lease();
  void taken(std::int64_t got, std::uint32_t n, kvshm_lease l);
  std::uint32_t flags();
  std::uint32_t part();
  // Every code is one that the header names, and the time is within the limit.
  void outcome(std::int64_t rc);

  void allocate();
  void register_();
  void fill_call();
  void hold_call();
  void handles_call();
  void match();
  void lease_call();
  void copy();
  void object();
  void look();
  void structs();
  void policy();
  void sweep();

  Scene& s_;
  Feed& f_;
  const bool wild_;
  unsigned calls_ = 0;
  std::uint64_t limit_ms_ = 0;
  std::vector<kvshm_handle> known_;
  std::size_t at_ = 0;
  const std::uint32_t blocks_;  // the victim's, which are not the scene's in a reshaped arena
  const std::uint64_t block_bytes_;
  std::vector<kvshm_lease> leases_;
  std::vector<kvshm_object*> objects_;
};

}  // namespace kvshm_fuzz
