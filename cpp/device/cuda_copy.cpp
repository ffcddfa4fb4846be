#include "device/cuda_copy.hpp"

#include <errno.h>

#include <algorithm>

#include "arena/error.hpp"
#include "device/cuda_kernel.hpp"

namespace kvshm {
namespace {

using namespace cuda;

constexpr std::size_t kBatch = 4096;  // copies that are handed over at once, in whole rows

int refused(const Driver& d, Result rc, const char* what) {
  const char* text = nullptr;
  d.error_string(rc, &text);
  return fail(-EIO, "CUDA: %s: %s (%d)", what, text ? text : "error", rc);
}

struct Lists {
  std::vector<Pointer> to, from;
  std::vector<std::size_t> bytes;
  explicit Lists(std::size_t room) { to.reserve(room), from.reserve(room), bytes.reserve(room); }
  void clear() { to.clear(), from.clear(), bytes.clear(); }
  void add(const kvshm_pages& p, const CudaRow& r, bool into_blocks) {
    for (std::uint32_t i = 0; i < p.nruns; i++) {
      const kvshm_run& run = p.runs[i];
      const Pointer there = run.address + r.row * run.stride;
      const auto here = reinterpret_cast<Pointer>(r.slice + run.offset);
      to.push_back(into_blocks ? here : there);
      from.push_back(into_blocks ? there : here);
      bytes.push_back(run.bytes);
    }
  }
};

// All of it or an error; after one it is not known what of it will be done.
Result batch(const Driver& d, Lists& l, void* stream) {
  CopyAttributes order = {1, {0, 0}, {0, 0}, 0};
  std::size_t first = 0, failed = 0;
  return d.copy_batch(l.to.data(), l.from.data(), l.bytes.data(), l.to.size(), &order, &first, 1,
                      &failed, stream);
}

Result one_by_one(const Driver& d, const Lists& l, void* stream) {
  for (std::size_t i = 0; i < l.to.size(); i++)
    if (Result rc = d.copy(l.to[i], l.from[i], l.bytes[i], stream)) return rc;
  return kSuccess;
}

}  // namespace

CudaCopies::~CudaCopies() {
  Context was;
  if (pushed_) driver_->ctx_pop(&was);
}

int CudaCopies::open(const kvshm_pages& p) {
  const char* missing = nullptr;
  driver_ = driver(&missing);
  if (!driver_) return fail(-KVSHM_EUNSUPPORTED, "no device: %s", missing);
  if (!driver_->copy) return fail(-KVSHM_EUNSUPPORTED, "libcuda.so.1 has no cuMemcpyAsync");
  Context now = nullptr;
  if (driver_->ctx_get_current(&now) == kSuccess && now) return 0;
  // A thread of the engine that has not used the device yet.
  if (p.stream && driver_->stream_context && driver_->stream_context(p.stream, &now) == kSuccess &&
      driver_->ctx_push(now) == kSuccess) {
    pushed_ = true;
    return 0;
  }
  return fail(-KVSHM_EUNSUPPORTED, "this thread has no CUDA context: set the device first");
}

// Is a kernel worth it, and there? False: nothing was enqueued.
bool CudaCopies::by_kernel(const kvshm_pages& p, const std::vector<CudaRow>& rows, bool into_blocks,
                           std::int32_t* codes) {
  if (p.nruns < 2 || p.slice_bytes / p.nruns >= kKernelPiece) return false;
  for (std::uint32_t i = 0; i < p.nruns; i++)
    if (p.runs[i].bytes > kKernelLongest) return false;
  Context now = nullptr;
  if (driver_->ctx_get_current(&now) || !now) return false;
  if (p.stream && (!driver_->stream_context || driver_->stream_context(p.stream, &now)))
    return false;
  const KernelState kernel = kernel_of(*driver_, now);
  if (!kernel.function) return false;
  bool begun = false;
  const Result rc = launch_rows(*driver_, kernel.function, p, rows, into_blocks, &begun);
  if (rc && !begun) return false;
  for (std::size_t i = 0; rc && i < rows.size(); i++) codes[rows[i].item] = -EIO;
  if (rc) refused(*driver_, rc, "cuLaunchKernel");
  return true;
}

void CudaCopies::enqueue(const kvshm_pages& p, const std::vector<CudaRow>& rows, bool into_blocks,
                         bool registered, std::int32_t* codes) {
  if (rows.empty() || (registered && by_kernel(p, rows, into_blocks, codes))) return;
  // The driver takes no batch for the default stream.
  const bool batches = driver_->copy_batch && p.stream;
  const std::size_t at_once = batches ? std::max<std::size_t>(1, kBatch / p.nruns) : 1;
  Lists lists(std::min(at_once, rows.size()) * p.nruns);
  Result rc = kSuccess;
  for (std::size_t i = 0; i < rows.size(); i += at_once) {
    const std::size_t end = std::min(rows.size(), i + at_once);
    if (!rc) {
      lists.clear();
      for (std::size_t j = i; j < end; j++) lists.add(p, rows[j], into_blocks);
      rc = batches ? batch(*driver_, lists, p.stream) : one_by_one(*driver_, lists, p.stream);
    }
    // After a refusal the rest is not tried: the context may be lost.
    for (std::size_t j = i; rc && j < end; j++) codes[rows[j].item] = -EIO;
  }
  if (rc) refused(*driver_, rc, batches ? "cuMemcpyBatchAsync" : "cuMemcpyAsync");
}

}  // namespace kvshm
