#include "device/pages.hpp"

#include <errno.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "arena/error.hpp"

namespace kvshm {
namespace {

using U128 = unsigned __int128;

// One past the last byte of the last row.
U128 end_of(const kvshm_run& r, std::uint32_t rows) {
  return U128(r.address) + U128(r.stride) * (rows ? rows - 1 : 0) + r.bytes;
}

int check_run(const kvshm_run& r, std::uint32_t rows, std::uint64_t slice_bytes) {
  if (!r.address || !r.bytes) return fail(-EINVAL, "a run without an address, or of no bytes");
  if (rows > 1 && r.stride < r.bytes)
    return fail(-EINVAL, "a run of %llu bytes every %llu: its rows overlap",
                (unsigned long long)r.bytes, (unsigned long long)r.stride);
  if (end_of(r, rows) > UINT64_MAX) return fail(-ERANGE, "a run reaches beyond the address space");
  if (r.offset > slice_bytes || r.bytes > slice_bytes - r.offset)
    return fail(-ERANGE, "a run's bytes %llu + %llu reach beyond the slice of %llu",
                (unsigned long long)r.offset, (unsigned long long)r.bytes,
                (unsigned long long)slice_bytes);
  return 0;
}

using Order = std::vector<std::uint32_t>;

template <class Less>
Order sorted(std::uint32_t n, Less less) {
  Order order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), less);
  return order;
}

// Runs [from, to) of `order` lie within each other's reach. With one stride they are apart if they
// are apart within it; rows at the ends of the reach are not told from those in its middle.
bool apart(const kvshm_run* runs, Order& order, std::size_t from, std::size_t to,
           std::uint32_t* bad) {
  if (to - from < 2) return true;
  const std::uint64_t base = runs[order[from]].address, stride = runs[order[from]].stride;
  for (std::size_t i = from; i < to; i++)
    if (runs[order[i]].stride != stride) return *bad = order[i], false;
  const auto place = [&](std::uint32_t i) { return (runs[i].address - base) % stride; };
  std::sort(order.begin() + std::ptrdiff_t(from), order.begin() + std::ptrdiff_t(to),
            [&](std::uint32_t x, std::uint32_t y) { return place(x) < place(y); });
  for (std::size_t i = from; i < to; i++) {
    const std::uint64_t next = i + 1 < to ? place(order[i + 1]) : stride + place(order[from]);
    if (runs[order[i]].bytes > next - place(order[i]))
      return *bad = order[i + 1 < to ? i + 1 : i], false;
  }
  return true;
}

bool rows_apart(const kvshm_run* runs, std::uint32_t n, std::uint32_t rows, std::uint32_t* bad) {
  Order order = sorted(
      n, [&](std::uint32_t x, std::uint32_t y) { return runs[x].address < runs[y].address; });
  for (std::size_t from = 0; from < n;) {
    U128 end = end_of(runs[order[from]], rows);
    std::size_t to = from + 1;
    for (; to < n && runs[order[to]].address < end; to++)
      end = std::max(end, end_of(runs[order[to]], rows));
    if (rows <= 1 ? to - from > 1 : !apart(runs, order, from, to, bad)) {
      if (rows <= 1) *bad = order[from + 1];
      return false;
    }
    from = to;
  }
  return true;
}

}  // namespace

std::int64_t prepare_runs(kvshm_run* runs, std::uint32_t n, std::uint32_t rows,
                          std::uint64_t slice_bytes, std::uint32_t* bad) {
  *bad = KVSHM_NONE;
  if (!n || !rows) return fail(-EINVAL, "no runs, or no rows");
  for (std::uint32_t i = 0; i < n; i++)
    if (int rc = check_run(runs[i], rows, slice_bytes)) return *bad = i, rc;
  const Order order =
      sorted(n, [&](std::uint32_t x, std::uint32_t y) { return runs[x].offset < runs[y].offset; });
  for (std::uint32_t i = 1; i < n; i++) {
    const kvshm_run& before = runs[order[i - 1]];
    if (runs[order[i]].offset - before.offset < before.bytes)
      return *bad = order[i], fail(-EINVAL, "two runs overlap in the slice");
  }
  if (!rows_apart(runs, n, rows, bad))
    return fail(-EINVAL, "two runs overlap in the rows, or mix strides within each other's reach");
  std::vector<kvshm_run> out;
  for (std::uint32_t i : order) {
    const kvshm_run& r = runs[i];
    kvshm_run* last = out.empty() ? nullptr : &out.back();
    if (last && last->stride == r.stride && last->address + last->bytes == r.address &&
        last->offset + last->bytes == r.offset)
      last->bytes += r.bytes;
    else
      out.push_back(r);
  }
  std::copy(out.begin(), out.end(), runs);
  return std::int64_t(out.size());
}

int check_runs(const kvshm_pages& p) {
  if (!p.runs || !p.nruns || !p.rows) return fail(-EINVAL, "no runs, or no rows");
  std::uint64_t end = 0;
  for (std::uint32_t i = 0; i < p.nruns; i++) {
    const kvshm_run& r = p.runs[i];
    if (int rc = check_run(r, p.rows, p.slice_bytes)) return rc;
    if (r.offset < end)
      return fail(-EINVAL, "runs overlap or are out of order: see kvshm_pages_prepare()");
    end = r.offset + r.bytes;
  }
  return 0;
}

}  // namespace kvshm
