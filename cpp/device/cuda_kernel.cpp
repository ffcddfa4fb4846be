#include "device/cuda_kernel.hpp"

#include <algorithm>
#include <cstring>

#include "device/kernels/work.h"

namespace kvshm::cuda {
namespace {

static_assert(sizeof(kvshm_work) <= 4096);
constexpr unsigned kThreads = 256, kBlocksARow = 16;

struct Groups {
  std::vector<kvshm_group> all;
  std::uint64_t unit;
};

bool continues(const kvshm_group& g, const kvshm_run& r) {
  if (r.bytes != g.bytes || r.stride != g.stride) return false;
  if (g.count == 1) return r.address > g.address;
  return r.address == g.address + g.step * g.count &&
         r.offset == g.offset + g.offset_step * g.count;
}

// Runs at equal distances are one group: the heads of a layer, the layers of a tensor.
Groups groups_of(const kvshm_pages& p) {
  Groups out{{}, 0};
  for (std::uint32_t i = 0; i < p.nruns; i++) {
    const kvshm_run& r = p.runs[i];
    kvshm_group* last = out.all.empty() ? nullptr : &out.all.back();
    if (last && continues(*last, r)) {
      if (last->count == 1)
        last->step = r.address - last->address, last->offset_step = r.offset - last->offset;
      last->count++;
    } else {
      out.all.push_back({r.address, r.stride, 0, r.offset, 0, kvshm_u32(r.bytes), 1});
    }
    out.unit |= r.address | r.stride | r.offset | r.bytes;
  }
  return out;
}

kvshm_u32 unit_of(std::uint64_t all) {
  return all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : 1;
}

}  // namespace

Result launch_rows(const Driver& d, void* function, const kvshm_pages& p,
                   const std::vector<CudaRow>& rows, bool into_blocks, bool* begun) {
  const Groups groups = groups_of(p);
  std::uint64_t unit = groups.unit;
  for (const CudaRow& r : rows) unit |= reinterpret_cast<std::uint64_t>(r.slice);
  kvshm_work w;
  std::memset(&w, 0, sizeof w);
  w.unit = unit_of(unit);
  w.into_blocks = into_blocks;
  for (std::size_t i = 0; i < rows.size(); i += KVSHM_WORK_ROWS) {
    w.rows = kvshm_u32(std::min<std::size_t>(KVSHM_WORK_ROWS, rows.size() - i));
    for (std::uint32_t j = 0; j < w.rows; j++) {
      w.slice[j] = reinterpret_cast<std::uint64_t>(rows[i + j].slice);
      w.row[j] = rows[i + j].row;
    }
    for (std::size_t g = 0; g < groups.all.size(); g += KVSHM_WORK_GROUPS) {
      w.groups = kvshm_u32(std::min<std::size_t>(KVSHM_WORK_GROUPS, groups.all.size() - g));
      w.pieces = 0;
      for (std::uint32_t j = 0; j < w.groups; j++)
        w.group[j] = groups.all[g + j], w.pieces += w.group[j].count;
      void* arguments[] = {&w};
      const Result rc = d.launch(function, std::min(w.pieces, kBlocksARow), w.rows, 1, kThreads, 1,
                                 1, 0, p.stream, arguments, nullptr);
      if (rc) return rc;
      *begun = true;
    }
  }
  return kSuccess;
}

}  // namespace kvshm::cuda
