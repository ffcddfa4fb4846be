#include "host.hpp"

#include <sys/mman.h>
#include <sys/types.h>

#include <cstdlib>
#include <cstring>

#include "arena/lock.hpp"
#include "host_tables.hpp"
#include "poison.hpp"

// Past the linker's --wrap.
extern "C" void* __real_mmap(void*, std::size_t, int, int, int, off_t);

namespace kvshm_fuzz::host {

Tables& tables() {
  static Tables t;
  return t;
}

namespace {
thread_local int depth = 0;
}

bool inside() { return depth > 0; }
Inside::Inside() { depth++; }
Inside::~Inside() { depth--; }

std::byte* memory() {
  Tables& t = tables();
  if (!t.memory) {
    void* p = __real_mmap(nullptr, kRoom, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    t.memory = static_cast<std::byte*>(p);
    poison(t.memory, kRoom);
  }
  return t.memory;
}

std::size_t size() { return tables().size; }

void resize(std::size_t n) {
  Tables& t = tables();
  std::byte* m = memory();
  if (n > t.size) {
    unpoison(m, n);
    std::memset(m + t.size, 0, n - t.size);
  }
  if (n < t.size) poison(m + n, t.size - n);
  t.size = n;
}

bool exists() { return tables().there; }

void replace(bool there) {
  Tables& t = tables();
  t.there = there;
  t.ino++;
}

Mark mark() {
  const Tables& t = tables();
  return {t.there, t.ino, t.size};
}

void restore(const Mark& m) {
  Tables& t = tables();
  t.there = m.there;
  t.ino = m.ino;
  if (t.size != m.size) resize(m.size);
}

std::uint64_t now_ms() { return tables().clock_ns / 1000000; }

unsigned descriptors() {
  unsigned n = 0;
  for (const Descriptor& d : tables().descriptors) n += d.used;
  return n;
}

unsigned mappings() {
  unsigned n = 0;
  for (const Mapping& m : tables().mappings) n += m.address != nullptr;
  return n;
}

unsigned locks() { return tables().nlocks; }

void drop_mapping(void* p) { tables().unmap(p); }

void hold_lives(unsigned n) {
  Tables& t = tables();
  if (t.crowd < 0) t.crowd = t.describe();
  for (unsigned s = 0; s < n; s++) t.lock(t.crowd, kvshm::life_byte(s), true);
}

void release_lives() {
  Tables& t = tables();
  t.let_go(t.crowd);
  t.crowd = -1;
}

// ---- tables -------------------------------------------------------------------------------------

int Tables::describe() {
  for (int i = 0; i < kDescriptions; i++)
    if (!references[i]) {
      references[i] = 1;
      return i;
    }
  return -1;
}

void Tables::let_go(int description) {
  if (description < 0 || --references[description]) return;
  unsigned kept = 0;
  for (unsigned i = 0; i < nlocks; i++)
    if (locks[i].description != description) locks[kept++] = locks[i];
  nlocks = kept;
}

bool Tables::conflict(int description, std::int64_t at, bool write) const {
  for (unsigned i = 0; i < nlocks; i++)
    if (locks[i].at == at && locks[i].description != description && (write || locks[i].write))
      return true;
  return false;
}

void Tables::unlock(int description, std::int64_t at) {
  for (unsigned i = 0; i < nlocks; i++)
    if (locks[i].at == at && locks[i].description == description) {
      locks[i] = locks[--nlocks];
      return;
    }
}

bool Tables::lock(int description, std::int64_t at, bool write) {
  if (conflict(description, at, write)) return false;
  unlock(description, at);
  if (nlocks == kLocks) std::abort();
  locks[nlocks++] = {description, at, write};
  return true;
}

bool Tables::map(void* p, int description, void* heap) {
  for (Mapping& m : mappings)
    if (!m.address) {
      m = {p, description, heap};
      if (description >= 0) references[description]++;
      return true;
    }
  return false;
}

bool Tables::unmap(void* p) {
  for (int i = kMappings; i-- > 0;) {
    Mapping& m = mappings[i];
    if (!p || m.address != p) continue;
    const Mapping gone = m;
    m = {};
    let_go(gone.description);
    std::free(gone.heap);
    return true;
  }
  return false;
}

bool Tables::mapped(const void* p) const {
  if (!p) return false;
  if (p >= memory && p < memory + kRoom) return true;
  for (const Mapping& m : mappings)
    if (m.address == p) return true;
  return false;
}

}  // namespace kvshm_fuzz::host
