// The table of an engine's paged KV (kvshm_pages.h): made, checked, and copied by on the host.
#pragma once
#include <kvshm.h>

#include <cstdint>

namespace kvshm {

// See kvshm_pages_prepare(). Throws std::bad_alloc.
std::int64_t prepare_runs(kvshm_run* runs, std::uint32_t n, std::uint32_t rows,
                          std::uint64_t slice_bytes, std::uint32_t* bad);
// What each call looks at before its first byte: 0, -EINVAL, -ERANGE. O(runs).
int check_runs(const kvshm_pages& p);
// The memory of every row against /proc/self/maps: 0, -EFAULT, -EACCES. Throws std::bad_alloc.
int check_mapped(const kvshm_pages& p, bool writing, std::uint32_t* bad);

// Rows into slices, and out of them. Streams, past the caches, where all that one call copies is
// more than they hold; the destructor orders that before what follows.
class RowCopies {
 public:
  RowCopies(const kvshm_pages& p, std::uint64_t rows);
  RowCopies(const RowCopies&) = delete;
  ~RowCopies();
  // `next`: the row that comes after it, to look ahead; beyond the last: none.
  void in(std::uint32_t row, char* slice, std::uint32_t next) const;
  void out(std::uint32_t row, const char* slice) const;

 private:
  void gather(std::uint32_t row, char* slice, std::uint32_t next) const;
  const kvshm_pages& p_;
  bool streams_;
};

}  // namespace kvshm
