// Rows into slices and back on the host, run by run.
#include <algorithm>
#include <cstring>

#include "device/copy.hpp"
#include "device/pages.hpp"

namespace kvshm {
namespace {

// Shorter runs into a slice are put together in a buffer first, so that whole lines are streamed;
// shorter ones out of a slice are streamed only where they are whole lines.
constexpr std::uint64_t kLong = 1024;

char* at(const kvshm_run& r, std::uint32_t row) {
  return reinterpret_cast<char*>(r.address + row * r.stride);
}

// Runs of a slice that follow one another.
class Gathered {
 public:
  explicit Gathered(char* slice) : slice_(slice) {}
  void add(const kvshm_run& r, const char* from, const char* next) {
    if (r.offset != end_ || end_ - begin_ + r.bytes > sizeof room_) {
      flush();
      begin_ = end_ = r.offset;
    }
    __builtin_prefetch(next);
    __builtin_prefetch(next + 64);
    std::memcpy(room_ + (end_ - begin_), from, r.bytes);
    end_ += r.bytes;
  }
  void flush() {
    const std::uint64_t n = end_ - begin_;
    stream_run(slice_ + begin_, room_, n, room_);
    begin_ = end_;
  }

 private:
  char* slice_;
  std::uint64_t begin_ = 0, end_ = 0;
  alignas(64) char room_[8192];
};

}  // namespace

RowCopies::RowCopies(const kvshm_pages& p, std::uint64_t rows)
    : p_(p), streams_(rows * p.slice_bytes >= kCached) {}

RowCopies::~RowCopies() {
  if (streams_) stream_fence();
}

void RowCopies::gather(std::uint32_t row, char* slice, std::uint32_t next) const {
  Gathered some(slice);
  for (std::uint32_t i = 0; i < p_.nruns; i++) {
    const kvshm_run& r = p_.runs[i];
    const bool last = i + 1 == p_.nruns;
    const char* soon = at(p_.runs[last ? 0 : i + 1], last ? next : row);
    if (r.bytes < kLong) {
      some.add(r, at(r, row), soon);
    } else {
      some.flush();
      stream_run(slice + r.offset, at(r, row), r.bytes, soon);
    }
  }
  some.flush();
}

void RowCopies::in(std::uint32_t row, char* slice, std::uint32_t next) const {
  if (streams_) return gather(row, slice, next < p_.rows ? next : row);
  for (std::uint32_t i = 0; i < p_.nruns; i++)
    std::memcpy(slice + p_.runs[i].offset, at(p_.runs[i], row), p_.runs[i].bytes);
}

void RowCopies::out(std::uint32_t row, const char* slice) const {
  for (std::uint32_t i = 0; i < p_.nruns; i++) {
    const kvshm_run& r = p_.runs[i];
    char* to = at(r, row);
    const char* from = slice + r.offset;
    const bool lines = (reinterpret_cast<std::uintptr_t>(to) | r.bytes) % 64 == 0;
    if (streams_ && (lines || r.bytes >= kLong))
      stream_run(to, from, r.bytes, from + r.bytes);
    else
      std::memcpy(to, from, r.bytes);
  }
}

}  // namespace kvshm
