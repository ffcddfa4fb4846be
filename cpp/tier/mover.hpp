// The thread of a tier: it alone calls the engine. Other threads hand it work and are never kept
// waiting by a disk. Loads are its own process's. Stores, and loads ahead, are of all processes, and
// the thread of the elected one takes them from the arena's lanes (queues.hpp).
//
// Loads go before stores: a store begins only while no load waits for a place. An operation moves
// one extent, in pieces of 2 MiB at most; several operations and pieces are in flight at once.
#pragma once
#include <pthread.h>

#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/condition.hpp"
#include "tier/admission.hpp"
#include "tier/engine.hpp"
#include "tier/queues.hpp"
#include "tier/tier.hpp"

namespace kvshm::tier {

struct Op {
  enum Kind : std::uint8_t { kLoad, kStore, kPage, kSync, kSuper, kRecords };
  Kind kind = kLoad;
  bool write() const { return kind == kStore || kind == kPage || kind == kSuper; }

  // The extent.
  unsigned file = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::byte* data = nullptr;
  std::unique_ptr<Bounce> bounce;  // where memory is not aligned, and for pages

  std::uint64_t issued = 0;
  unsigned flying = 0, retries = 0;  // pieces in flight or to be tried again; how often
  int rc = 0;
  bool super = false;  // a sync of superblocks
  bool begun() const { return issued >= bytes && (kind != kSync || retries || flying); }

  // kLoad, kStore: the block and the slot; kPage: number of the page
  kvshm_handle memory{0, kNone, 0}, slot{0, kNone, 0};
  Key key;
  Record record{};  // kLoad: what must come; kStore: what is written
  std::shared_ptr<LoadState> load;
  std::uint32_t index = 0;  // within the load
  std::int64_t since = 0;   // of a load: when it was asked for
  unsigned lane = kNoLane;  // kStore: its place in the queues
  std::uint64_t ticket = 0;
  std::uint64_t number = 0, version = 0;
  unsigned copied_again = 0;
  std::vector<kvshm_handle> next;   // slots that came while the page was being written
  std::vector<kvshm_handle> slots;  // of a page, or what a sync makes READY
};

struct LoadJob {  // of one key: read it (slot held, memory FILLING), or await another's fill
  std::shared_ptr<LoadState> load;
  std::uint32_t index;
  Key key;
  kvshm_handle memory, slot;  // slot.seq == 0: awaited
  std::int64_t since;
};

struct Store {  // a block that is to go down
  kvshm_handle block;
  bool first = true;        // not yet put back behind its parents
  unsigned lane = kNoLane;  // its place in the queues, if it has one
  std::uint64_t ticket = 0;
  std::int64_t again_until = 0;  // a predecessor may still be writing it: looked at until then
};
enum class Begun { kYes, kOver, kLater };  // under way; nothing to do; put back

class Mover {
 public:
  explicit Mover(Tier& t);
  ~Mover();
  int start();                          // engine and thread
  bool stop(std::int64_t deadline_ms);  // true: the thread has ended

  // Any thread.
  void wake_for_stores();  // if it sleeps, and stores for all
  void load(std::vector<LoadJob>&& jobs);
  int drain(std::int64_t deadline_ms);
  int write_pages(std::int64_t deadline_ms);  // all of them, for clear()
  void kick() {
    if (engine_kick_) engine_kick_->kick();
  }
  std::uint32_t state() const { return state_.load(std::memory_order_relaxed); }
  void describe(kvshm_tier* out);
  bool too_slow();  // and this asker is not the one that tries
  std::uint64_t read_speed() const { return read_speed_.load(std::memory_order_relaxed); }

 private:
  struct Flight {
    Op* op = nullptr;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
    bool direct = false;
    std::int64_t since = 0;
  };
  using OpPtr = std::unique_ptr<Op>;

  // mover.cpp
  static void* run(void* self);
  void loop();
  bool ended();
  bool fall_asleep();
  bool stopping();
  void wake_up();
  bool aim(Op& op);
  void take_work();
  void refuse(LoadJob& j);
  void fail_all();
  void issue();
  void issue_from(std::deque<OpPtr>& queue);
  int start_piece(Op* op, std::uint64_t at, std::uint32_t bytes);
  bool room(const Op& op) const;
  void land(const Landed& l);
  void again(Op* op, std::uint64_t at, std::uint32_t bytes);
  void settle(Op* op);
  int check_loads();
  void finish(OpPtr op);
  void tick(std::int64_t now);
  void give_up_late(std::int64_t now);
  void clock_reads(std::uint64_t bytes);
  void tell();  // to others: the line of this slot
  // engines.cpp
  int open_engine(std::uint32_t want);
  void change_engine(int cause);
  void leave_engine();
  void look_at_fences();
  // lead.cpp
  void stand(std::int64_t now);
  void resign();
  bool leader_stalls() const;
  void look_at_owed();
  bool next_store(Store* s);
  bool gathered() const;
  bool admitted(const Store& s);
  void look_at_water(std::int64_t now);
  void begin_fetches();
  bool begin_fetch(const Waiting& w);
  void item_over(unsigned lane, std::uint64_t ticket);
  void share(unsigned lane, std::uint64_t ticket, std::size_t n);
  std::int64_t nap() const;
  // stores.cpp
  bool may_store() const;
  bool begin_stores();  // true: there are more, and room for them
  Begun begin_store(Store& s);
  bool queue_parents(const Store& s);
  void end_store(Op& op);
  void flush_pages(bool all);
  void begin_page(OpPtr op);
  void end_page(OpPtr op);
  void wipe_pages();
  void wiped(int rc);
  void publish(const std::vector<kvshm_handle>& slots, bool well);
  void unpark();
  void try_parked(std::int64_t now);
  // loads.cpp
  void begin_load(LoadJob&& j);
  void end_load(Op& op);
  void fail_load(Op& op, bool damaged);
  void begin_read(LoadJob&& j);
  bool look_again(LoadJob& j);
  void look_at_awaited();
  // rebuild.cpp
  void look_at_rebuild();
  void read_records();
  void adopt_records(Op& op);
  void adopt(std::uint32_t slot, const Record& r);
  void end_rebuild();
  void look_at_epoch(bool last);
  void end_epoch(OpPtr op);

  Tier& t_;
  pthread_t thread_{};
  bool running_ = false;
  std::unique_ptr<Engine> engine_;
  // Engines are exchanged under its mutex.
  struct Kick {
    std::mutex mutex;
    Engine* engine = nullptr;
    void kick() {
      std::lock_guard<std::mutex> lock(mutex);
      if (engine) engine->kick();
    }
  };
  std::unique_ptr<Kick> engine_kick_;

  // Shared with other threads, under `mutex_`.
  std::mutex mutex_;
  Condition idle_;
  std::deque<LoadJob> jobs_;
  bool pages_wanted_ = false, stopping_ = false, ended_ = false, asleep_ = false;
  int pages_rc_ = 0;
  std::string why_;
  std::uint32_t engine_kind_ = 0;

  std::atomic<std::uint32_t> state_{KVSHM_TIER_NONE};  // relaxed: a figure; work is checked anew
  std::atomic<std::uint32_t> in_flight_{0};
  std::atomic<std::uint64_t> read_speed_{0};  // relaxed, as is the next: figures
  std::atomic<std::int64_t> try_at_{0};
  std::atomic<bool> leads_{false};  // relaxed: a hint to others; the thread alone changes it

  // The thread's own.
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_flights_;
  Intake intake_;             // what all processes have queued, while it leads
  std::deque<Store> todo_;    // goes before that: parents, victims of a watermark
  std::vector<Store> later_;  // a predecessor's, until its slot is reaped
  std::int64_t later_at_ = 0, stand_at_ = 0, water_at_ = 0;
  std::uint64_t water_hand_ = 0;
  Admission admission_;
  struct Turn {
    unsigned lane;
    std::uint64_t ticket;
  };
  std::unordered_map<std::uint64_t, unsigned> shared_;  // tickets of several: how many others
  std::unordered_map<std::uint32_t, Turn> owed_;        // by slot: of written_ and pages
  std::deque<OpPtr> ready_loads_, ready_writes_;        // begun, with pieces to issue
  std::deque<OpPtr> ready_fetches_;                     // the same of loads ahead
  std::vector<OpPtr> flying_;                           // all pieces issued
  std::deque<OpPtr> come_;                              // loads that have landed, to be checked
  std::vector<std::unique_ptr<Bounce>> pages_;          // for pages to come
  struct Piece {
    Op* op;
    std::uint64_t at;
    std::uint32_t bytes;
  };
  std::deque<Piece> again_;  // landed short, or were interrupted
  struct Limbo {             // of an engine that was given up
    int fence;
    std::int64_t since;
    std::vector<OpPtr> ops;
  };
  std::vector<Limbo> limbo_;
  std::vector<LoadJob> awaited_;
  std::vector<kvshm_handle> written_;  // slots whose data is there, and whose page is not
  std::int64_t written_since_ = 0;
  std::vector<kvshm_handle> parked_;  // slots for which the file system had no room
  std::vector<std::uint32_t> tried_;  // of these, given back last
  std::size_t tries_ = 0;
  std::int64_t parked_until_ = 0, full_at_ = 0;
  unsigned reads_ = 0, writes_ = 0;  // pieces in flight
  std::uint64_t read_bytes_ = 0, write_bytes_ = 0;
  std::uint64_t copies_ = 0;                        // of pages
  std::unordered_map<std::uint64_t, Op*> at_work_;  // pages being written for stores
  unsigned stores_flying_ = 0;
  std::int64_t tick_at_ = 0;
  bool stalled_ = false, broken_ = false, no_space_ = false, stop_seen_ = false;
  bool rebuilding_ = false;  // by this process
  std::uint64_t rebuild_next_ = 0;
  std::int64_t rebuild_since_ = 0;
  unsigned rebuild_flying_ = 0;
  bool registered_ = false;
  std::int64_t reading_since_us_ = 0;
  double clocked_bytes_ = 0, clocked_us_ = 0;
  unsigned epoch_flying_ = 0;  // superblocks being written
  std::uint32_t epoch_asked_ = 0, cause_ = 0;
  std::uint64_t wipe_next_ = kNoWipe;  // page of write_pages() that comes next
  unsigned wipe_flying_ = 0;
  bool wipe_synced_ = false;
  static constexpr std::uint64_t kNoWipe = ~std::uint64_t{0};
};

}  // namespace kvshm::tier
