// What waits to be moved, of all processes of an arena, in its memory: whoever moves it dies, and the
// next one finds the rest.
//
//            done       head             tail
//   ──ended──┼──taken───┼──waiting───────┼── free: kLaneRoom in all, from `done` on
//
// A lane for each priority. Producers claim a place by one compare-and-swap of `tail`, fill it, and
// give it its turn last. The mover (who has the arena's post of that name) takes in order, marks what
// it has taken, and moves `done` up to the first that has not ended. A successor begins at `done`: it
// does again what its predecessor may have done, which costs a look.
//
// Entries are hints. A producer that dies, or sleeps, between claim and turn loses its place after a
// moment; if it wakes up a round later it spoils one entry. Both cost a block that is not moved: what
// is named is checked against its life, or looked up by its key, before anything is done with it.
//
//   state  63                  2 1 0
//          [ ms                ][k ]   ms of CLOCK_MONOTONIC; k: 0 waiting, 1 taken, 2 cancelled
//
// Invariants
//   Q1  done <= head <= tail <= done + kLaneRoom
//   Q2  of a cancel and a take of one entry one wins: a compare-and-swap of its state
#pragma once
#include <cstdint>
#include <deque>

#include "arena/arena.hpp"

namespace kvshm::tier {

// In the order in which they are served.
enum LaneName : unsigned {
  kAsked = 0,  // stores asked for, and of blocks whose priority is above the usual
  kUsual = 1,  // stores at registration or release
  kLater = 2,  // stores that are gathered until they are due
  kFetch = 3,  // loads that nobody waits for yet; what: a key
  kNoLane = 4
};
static_assert(kNoLane == kLanes);

#ifdef KVSHM_STEPS
inline std::atomic<bool> take_over_nothing{
    false};  // a control of the tests: what was taken is lost
inline bool forget_taken() { return take_over_nothing.load(std::memory_order_relaxed); }
#else
constexpr bool forget_taken() { return false; }
#endif

struct Waiting {  // an entry that was taken
  std::uint64_t what[2] = {0, 0};
  std::int64_t since = 0;  // now_ms()
  unsigned lane = kNoLane;
  std::uint64_t ticket = 0;
  bool again = false;  // a predecessor had taken it
};

// Any process and thread. most: entries of the lane that may wait. False: so many do. *ticket: of it.
bool push(Arena& a, unsigned lane, std::uint64_t what0, std::uint64_t what1, std::uint32_t most,
          std::uint64_t* ticket);
// Takes stores of these blocks back that nobody has begun; how many.
std::uint32_t cancel(Arena& a, const kvshm_handle* h, std::uint32_t n);
// All that is gathered by now is due.
void flush(Arena& a);
std::uint64_t waiting(const Arena& a, unsigned lane);  // taken and not ended ones included
bool ended(const Arena& a, unsigned lane, std::uint64_t ticket);

// The mover's side; one thread.
class Intake {
 public:
  explicit Intake(Arena& a) : a_(a) {}
  // From where the last one left. True: that one left something unfinished.
  bool begin();
  // The next of a lane. False: none. Places that were never filled are passed over.
  bool take(unsigned lane, Waiting* out);
  // The oldest that waits there: since when; 0: none does, or it is not filled yet.
  std::int64_t oldest(unsigned lane) const;
  std::uint64_t left(unsigned lane) const;  // to take
  bool due(unsigned lane) const;            // somebody wanted it moved now
  void end(unsigned lane, std::uint64_t ticket);
  void end_all();  // that were taken: nothing is under way any more

 private:
  bool passed_over(unsigned lane);
  void mend(unsigned lane);
  Arena& a_;
  struct {
    std::uint64_t first = 0;      // ticket of the front
    std::deque<bool> ended;       // of those taken
    std::uint64_t had_taken = 0;  // up to here by a predecessor
    std::int64_t unfilled_since = 0;
  } lanes_[kLanes];
};

}  // namespace kvshm::tier
