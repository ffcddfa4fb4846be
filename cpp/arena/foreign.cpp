#include "arena/foreign.hpp"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

#include "arena/object.hpp"

namespace kvshm {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint64_t kWords = sizeof(ForeignNote::identity) / 8;
static_assert(sizeof(ForeignNote::identity) == 1024);

void write_note(ForeignNote& n, const char* text) {
  const std::uint64_t now = std::uint64_t(time(nullptr));
  n.count.fetch_add(1, kRelaxed);  // a figure
  std::uint64_t v = n.version.load(std::memory_order_acquire);
  // Odd: another one is writing, and its note is as good; after two seconds it died there.
  if ((v & 1) && now - n.at.load(kRelaxed) < 2) return;
  const std::uint64_t odd = (v | 1) + (v & 1 ? 2 : 0);
  if (!n.version.compare_exchange_strong(v, odd, std::memory_order_seq_cst)) return;
  n.at.store(now, std::memory_order_release);
  n.pid.store(std::uint64_t(getpid()), std::memory_order_release);
  char padded[1024] = {};
  std::strncpy(padded, text, sizeof padded - 1);
  for (std::uint64_t i = 0; i < kWords; i++) {
    std::uint64_t w;
    std::memcpy(&w, padded + 8 * i, 8);
    n.identity[i].store(w, std::memory_order_release);  // after `version`, before its next value
  }
  v = odd;
  n.version.compare_exchange_strong(v, odd + 1, std::memory_order_seq_cst);
}

}  // namespace

void note_foreign(int fd, const char* text) {
  const std::size_t page = mount_page(fd);
  void* p = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return;
  write_note(static_cast<Superblock*>(p)->foreign, text);
  munmap(p, page);
}

void read_foreign(const ForeignNote& n, char* out) {
  for (int attempt = 0; attempt < 100; attempt++) {
    const std::uint64_t before = n.version.load(std::memory_order_acquire);
    for (std::uint64_t i = 0; i < kWords; i++) {
      const std::uint64_t w = n.identity[i].load(std::memory_order_acquire);
      std::memcpy(out + 8 * i, &w, 8);
    }
    out[1023] = 0;
    if (!(before & 1) && n.version.load(kRelaxed) == before) return;
  }
  *out = 0;
}

}  // namespace kvshm
