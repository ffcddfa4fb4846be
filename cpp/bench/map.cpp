// SPDX-License-Identifier: Apache-2.0
// map, map_shared: the reference, std::unordered_map from key to {id, pins}: in one process without
// any lock, and in memory that several processes share, behind a process-shared mutex.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "bench.hpp"

namespace bench {
namespace {

struct Hash {  // the keys are uniform
  std::size_t operator()(const Key& k) const {
    std::size_t h;
    std::memcpy(&h, k.bytes, sizeof h);
    return h;
  }
};
struct Same {
  bool operator()(const Key& a, const Key& b) const { return std::memcmp(&a, &b, 16) == 0; }
};
struct Value {
  std::uint32_t id, pins;
};

constexpr unsigned kBatch = 1000, kMost = 16;

struct Region {  // shared by parent and children
  pthread_mutex_t mutex;
  std::atomic<unsigned> here;
  double ns[kMost], per_second[kMost];
  char* next;
};

Region* region;  // at one address in all of them: they are forked

template <class T>
struct Bump {  // takes from the region, gives nothing back
  using value_type = T;
  Bump() = default;
  template <class U>
  Bump(const Bump<U>&) {}
  T* allocate(std::size_t n) {
    char* p = region->next;
    region->next += (n * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(p);
  }
  void deallocate(T*, std::size_t) {}
  bool operator==(const Bump&) const { return true; }
};

using Plain = std::unordered_map<Key, Value, Hash, Same>;
using Shared = std::unordered_map<Key, Value, Hash, Same, Bump<std::pair<const Key, Value>>>;

std::vector<Key> in_order(std::uint64_t n, std::uint64_t order_seed) {
  const std::vector<std::uint32_t> order = shuffled(n, order_seed);
  std::vector<Key> keys(n);
  for (std::uint64_t i = 0; i < n; i++) make_key(1, order[i], keys[i].bytes);
  return keys;
}

template <class Step>  // batches until the time is over: median ns a step
void timed(std::uint64_t ms, double* ns, double* per_second, const Step& step) {
  std::vector<double> batches;
  const std::uint64_t start = now_ns(), end = start + ms * 1000000;
  std::uint64_t last = start;
  while (last < end) {
    for (unsigned i = 0; i < kBatch; i++) step();
    const std::uint64_t now = now_ns();
    batches.push_back(double(now - last) / kBatch);
    last = now;
  }
  *ns = median(batches);
  *per_second = double(batches.size()) * kBatch * 1e9 / double(last - start);
}

}  // namespace

int map_alone(const Args& args) {
  const std::uint64_t n = args.number("blocks");
  Plain map;
  map.reserve(n);
  for (std::uint64_t i = 0; i < n; i++) {
    Key key;
    make_key(1, i, key.bytes);
    map.emplace(key, Value{std::uint32_t(i), 0});
  }
  std::vector<Key> keys;  // for the first round that wants them
  const auto request = std::uint32_t(args.number("request", 512));
  const std::vector<std::uint32_t> chains = shuffled(n / request, 9);
  const std::vector<Key> chained = make_keys(1, 0, n);
  std::uint64_t at = 0, chain = 0, in_chain = 0, fresh = 0;
  Line facts;
  return serve(facts, [&](const Order& order, Line& out) {
    double ns = 0, rate = 0;
    if (order.word == "point") {
      if (keys.empty()) keys = in_order(n, 7);
      timed(order.number, &ns, &rate, [&] {
        const auto found = map.find(keys[at]);
        if (found == map.end()) die("a miss");
        found->second.pins++;
        std::atomic_signal_fence(std::memory_order_seq_cst);  // both stores really happen
        found->second.pins--;
        if (++at == n) at = 0;
      });
    } else if (order.word == "match") {
      timed(order.number, &ns, &rate, [&] {
        const auto found = map.find(chained[std::uint64_t(chains[chain]) * request + in_chain]);
        if (found == map.end()) die("a miss");
        found->second.pins++;
        if (++in_chain == request) in_chain = 0, chain = (chain + 1) % chains.size();
      });
    } else if (order.word == "insert") {  // one goes, one comes
      timed(order.number, &ns, &rate, [&] {
        Key key;
        if (fresh < n)
          map.erase(chained[fresh]);
        else
          make_key(3, fresh - n, key.bytes), map.erase(key);
        make_key(3, fresh++, key.bytes);
        map.emplace(key, Value{1, 0});
      });
    } else {
      die("map: %s?", order.word.c_str());
    }
    out.add("ns", ns).add("per_second", rate);
  });
}

int map_shared(const Args& args) {
  const std::uint64_t n = args.number("blocks");
  const std::size_t bytes = (4 << 20) + n * 192;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("no memory for a shared map");
  region = new (memory) Region;
  region->next = static_cast<char*>(memory) + (sizeof(Region) + 63) / 64 * 64;
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&region->mutex, &attr);
  auto map = std::make_unique<Shared>();
  map->reserve(n);
  for (std::uint64_t i = 0; i < n; i++) {
    Key key;
    make_key(1, i, key.bytes);
    map->emplace(key, Value{std::uint32_t(i), 0});
  }
  const std::vector<Key> keys = in_order(n, 7);

  auto child = [&](unsigned me, unsigned processes, std::uint64_t ms) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    madvise(memory, bytes, MADV_POPULATE_WRITE);  // the page tables are not inherited
    region->here++;
    while (region->here < processes) usleep(100);
    std::uint64_t at = me * (n / processes);
    timed(ms, &region->ns[me], &region->per_second[me], [&] {
      pthread_mutex_lock(&region->mutex);
      const auto found = map->find(keys[at]);
      if (found == map->end()) _exit(1);
      found->second.pins++;
      pthread_mutex_unlock(&region->mutex);
      pthread_mutex_lock(&region->mutex);
      found->second.pins--;
      pthread_mutex_unlock(&region->mutex);
      if (++at == n) at = 0;
    });
    _exit(0);
  };
  Line facts;
  return serve(facts, [&](const Order& order, Line& out) {  // the word: how many processes
    const unsigned processes = unsigned(std::strtoul(order.word.c_str(), nullptr, 10));
    if (!processes || processes > kMost) die("map_shared: %s processes?", order.word.c_str());
    region->here = 0;
    std::vector<pid_t> pids;
    for (unsigned i = 0; i < processes; i++) {
      const pid_t pid = fork();
      if (pid < 0) die("fork failed");
      if (pid == 0) child(i, processes, order.number);
      pids.push_back(pid);
    }
    bool ok = true;
    for (pid_t pid : pids) {
      int status = 0;
      ok = waitpid(pid, &status, 0) == pid && status == 0 && ok;
    }
    if (!ok) die("a process of the shared map failed");
    std::vector<double> ns(region->ns, region->ns + processes);
    double rate = 0;
    for (unsigned i = 0; i < processes; i++) rate += region->per_second[i];
    out.add("ns", median(ns)).add("per_second", rate);
  });
}

}  // namespace bench
