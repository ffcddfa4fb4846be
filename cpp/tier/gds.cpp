#include "tier/gds.hpp"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "arena/error.hpp"
#include "tier/gds_stage.hpp"
#include "tier/record.hpp"

namespace kvshm::tier {

using namespace cuda;

// One for each thread that is at work, kept for the next.
class StageLease {
 public:
  explicit StageLease(Gds& g) : g_(g) {
    std::lock_guard<std::mutex> lock(g_.mutex_);
    if (g_.stages_.empty()) return;
    stage_ = std::move(g_.stages_.back());
    g_.stages_.pop_back();
  }
  StageLease(const StageLease&) = delete;
  ~StageLease() {
    if (!stage_) return;
    std::lock_guard<std::mutex> lock(g_.mutex_);
    g_.stages_.push_back(std::move(stage_));  // there is room: see make()
  }
  int make() {
    if (stage_) return 0;
    std::string why;
    auto made = std::make_unique<Stage>(g_.session_);
    if (!made->make(g_.files_.slot_bytes, &why)) return fail(-EIO, "%s", why.c_str());
    std::lock_guard<std::mutex> lock(g_.mutex_);
    g_.stages_.reserve(++g_.made_);
    g_.pinned_ = g_.pinned_ && made->pinned();
    stage_ = std::move(made);
    return 0;
  }
  Stage& operator*() const { return *stage_; }

 private:
  Gds& g_;
  std::unique_ptr<Stage> stage_;
};

namespace {

int refused(const Driver& d, Result rc, const char* what) {
  return fail(-EIO, "CUDA: %s: %s", what, text_of(d, rc).c_str());
}

// Pieces within the extent; how many of its bytes are in one.
int check(const Extent& e, const kvshm_gds_piece* p, std::uint32_t n, std::uint64_t slot_bytes,
          std::uint64_t* covered) {
  if (!n || !p) return fail(-EINVAL, "no piece of device memory");
  if (e.bytes > slot_bytes) return fail(-ERANGE, "%u bytes: a slot has fewer", e.bytes);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (std::uint32_t i = 0; i < n; i++) {
    if (!p[i].address || !p[i].bytes || p[i].offset > e.bytes ||
        p[i].bytes > e.bytes - p[i].offset || p[i].address + p[i].bytes < p[i].address)
      return fail(-ERANGE, "piece %u: empty, or beyond the block's %u bytes", i, e.bytes);
    spans.emplace_back(p[i].offset, p[i].offset + p[i].bytes);
  }
  std::sort(spans.begin(), spans.end());
  std::uint64_t end = 0;
  *covered = 0;
  for (const auto& [from, to] : spans) {
    if (to > end) *covered += to - std::max(from, end);
    end = std::max(end, to);
  }
  return 0;
}

bool right(const Extent& e, const void* data) {
  std::uint64_t found[2];
  payload_check(data, e.bytes, found);
  return found[0] == e.check[0] && found[1] == e.check[1];
}

// All of it, whatever pieces the kernel makes of it. 0 or -errno; -EIO: the file ends before.
int transfer(int fd, std::byte* data, std::uint64_t least, std::uint64_t bytes,
             std::uint64_t offset, bool write) {
  for (std::uint64_t at = 0; at < least;) {
    const ssize_t n = write ? pwrite(fd, data + at, bytes - at, off_t(offset + at))
                            : pread(fd, data + at, bytes - at, off_t(offset + at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) return -EIO;
    at += std::uint64_t(n);
  }
  return 0;
}

const char* name_of(int way) { return way == 0 ? "loads" : "stores"; }

}  // namespace

Gds::Gds() = default;

int Gds::open(const GdsFiles& files, const kvshm_gds_options& o, std::unique_ptr<Gds>* out) {
  std::unique_ptr<Gds> g(new Gds);
  g->files_ = files;
  g->modes_[kLoad] = o.load, g->modes_[kStore] = o.store;
  g->trust_ = o.flags & KVSHM_GDS_TRUST;
  std::string why;
  const char* missing = nullptr;
  const Driver* d = driver(&missing);
  if (d && (!d->copy || !d->stream_create || !d->stream_destroy || !d->stream_wait))
    d = nullptr, missing = "libcuda.so.1 has no streams: the driver is too old";
  if (!d) {
    why = missing;
  } else {
    g->session_.driver = d;
    if (const Result rc = choose_context(g->session_, o.device)) {
      why = "CUDA: " + text_of(*d, rc);
      g->session_ = {};
    }
  }
  const bool wanted = o.load != KVSHM_OFF || o.store != KVSHM_OFF;
  if (why.empty() && wanted) g->prepare(o, &why);
  for (int way = 0; way < kWays; way++) {
    if (g->modes_[way] == KVSHM_REQUIRE && !why.empty())
      return fail(-KVSHM_EUNSUPPORTED, "no direct path between the tier and the device: %s",
                  why.c_str());
    g->paths_[way] = why.empty() && g->modes_[way] != KVSHM_OFF ? KVSHM_GDS_DIRECT : KVSHM_GDS_HOST;
  }
  g->why_ = why;
  if (wanted && !why.empty())
    log_line(KVSHM_LOG_WARN, "GPU-direct storage: by the host: %s", why.c_str());
  *out = std::move(g);
  return 0;
}

// All that the direct path needs, or none of it and *why.
void Gds::prepare(const kvshm_gds_options& o, std::string* why) {
  Current now(session_);
  if (now.rc()) return void(*why = "CUDA: " + text_of(*session_.driver, now.rc()));
  library_ = cufile::library(o.timeout_ms ? o.timeout_ms : 10000, why);
  if (!library_) return;
  cufile::Properties p = {};
  const cufile::Error e = library_->properties(&p);
  if (e.err)
    *why = "cuFileDriverGetProperties: " + cufile::text_of(e);
  else if (!p.major && !p.minor && !(p.features & cufile::kPeerToPeer))
    *why =
        "cuFile would copy by way of the host itself (its compatibility mode): nvidia-fs is not "
        "loaded";
  may_stage_ = (p.control & cufile::kAllowsHost) != 0;
  if (!why->empty() || !registered(o, why)) unregister();
}

bool Gds::registered(const kvshm_gds_options& o, std::string* why) {
  for (std::size_t i = 0; i < files_.files.size(); i++) {
    cufile::Descriptor d = {1, {files_.files[i]}, nullptr};
    cufile::Handle h = nullptr;
    if (const cufile::Error e = library_->handle_register(&h, &d); e.err) {
      *why = "cuFileHandleRegister of file " + std::to_string(i) + ": " + cufile::text_of(e);
      return false;
    }
    handles_.push_back(h);
  }
  for (std::uint32_t i = 0; i < o.nbuffers; i++) {
    const kvshm_gds_buffer& b = o.buffers[i];
    const cufile::Error e =
        library_->buffer_register(reinterpret_cast<const void*>(b.address), b.bytes, 0);
    if (e.err) {
      *why = "cuFileBufRegister of buffer " + std::to_string(i) + ": " + cufile::text_of(e);
      return false;
    }
    buffers_.push_back(b);
  }
  return true;
}

void Gds::unregister() {
  for (const kvshm_gds_buffer& b : buffers_)
    library_->buffer_deregister(reinterpret_cast<const void*>(b.address));
  for (cufile::Handle h : handles_) library_->handle_deregister(h);
  buffers_.clear(), handles_.clear();
}

Gds::~Gds() {
  if (!session_.driver) return;
  {
    Current now(session_);
    if (library_) unregister();
    stages_.clear();
  }
  give_up(session_);
}

std::uint32_t Gds::path(Way way) {
  std::lock_guard<std::mutex> lock(mutex_);
  return paths_[way];
}

int Gds::done(Way way, std::uint32_t path, std::uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  blocks_[way][path]++;
  bytes_[way][path] += bytes;
  return 0;
}

void Gds::leave_direct(Way way, const std::string& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (paths_[way] != KVSHM_GDS_DIRECT) return;
    paths_[way] = KVSHM_GDS_HOST;
    switches_++;
    why_ = why;
  }
  log_line(KVSHM_LOG_WARN, "GPU-direct storage: %s go by the host from now on: %s", name_of(way),
           why.c_str());
}

// One piece by cuFile, in the buffer that it lies in.
bool Gds::move(const Extent& e, const kvshm_gds_piece& p, Way way, std::string* why) {
  std::uint64_t base = p.address;
  for (const kvshm_gds_buffer& b : buffers_)
    if (p.address >= b.address && p.address - b.address < b.bytes &&
        p.bytes <= b.bytes - (p.address - b.address))
      base = b.address;
  void* const memory = reinterpret_cast<void*>(base);
  for (std::uint64_t at = 0; at < p.bytes;) {
    const auto file = off_t(e.offset + p.offset + at), buffer = off_t(p.address - base + at);
    errno = 0;
    const ssize_t n = way == kLoad
                          ? library_->read(handles_[e.file], memory, p.bytes - at, file, buffer)
                          : library_->write(handles_[e.file], memory, p.bytes - at, file, buffer);
    const int error = errno;
    if (n == -1 && error == EINTR) continue;
    if (n <= 0 || std::uint64_t(n) > p.bytes - at) {
      *why = std::string(way == kLoad ? "cuFileRead: " : "cuFileWrite: ") +
             cufile::text_of(n > 0 ? 0 : n, error);
      return false;
    }
    at += std::uint64_t(n);
  }
  return true;
}

int Gds::load_from(void* host, std::uint32_t bytes, const kvshm_gds_piece* p, std::uint32_t n,
                   std::uint32_t from) {
  std::uint64_t covered = 0;
  Extent e;
  e.bytes = bytes;
  if (int rc = check(e, p, n, bytes, &covered)) return rc;
  if (!session_.driver) return fail(-KVSHM_EUNSUPPORTED, "no device: %s", why_.c_str());
  Current now(session_);
  if (now.rc()) return refused(*session_.driver, now.rc(), "the context");
  StageLease stage(*this);
  if (int rc = stage.make()) return rc;
  if (int rc = copy(*stage, static_cast<std::byte*>(host), p, n, true)) return rc;
  return done(kLoad, from, covered);
}

int Gds::copy(Stage& s, std::byte* host, const kvshm_gds_piece* p, std::uint32_t n,
              bool to_device) {
  Result rc = kSuccess;
  for (std::uint32_t i = 0; !rc && i < n; i++) {
    const auto here = reinterpret_cast<Pointer>(host + p[i].offset);
    rc =
        to_device ? s.copy(p[i].address, here, p[i].bytes) : s.copy(here, p[i].address, p[i].bytes);
  }
  const Result end = s.wait();  // also of those before a refusal
  if (rc || end) return refused(*session_.driver, rc ? rc : end, "a copy");
  return 0;
}

std::uint64_t Gds::whole(std::uint64_t bytes) const {  // as O_DIRECT wants it
  return std::min((bytes + files_.align - 1) / files_.align * files_.align, files_.slot_bytes);
}

int Gds::read(Stage& s, const Extent& e) {
  const int rc = transfer(files_.files[e.file], s.data(), e.bytes, whole(e.bytes), e.offset, false);
  return rc ? fail(-EIO, "reading a slot: %s", strerror(-rc)) : 0;
}

int Gds::load_staged(Stage& s, const Extent& e, const kvshm_gds_piece* p, std::uint32_t n) {
  if (int rc = read(s, e)) return rc;
  if (!right(e, s.data())) return fail(-EBADMSG, "a slot has other bytes than were stored");
  return copy(s, s.data(), p, n, true);
}

// The bytes that have arrived, on the host once more; those of no piece from the file.
int Gds::verify(Stage& s, const Extent& e, const kvshm_gds_piece* p, std::uint32_t n, bool all) {
  if (!all)
    if (int rc = read(s, e)) return rc;
  if (int rc = copy(s, s.data(), p, n, false)) return rc;
  return right(e, s.data()) ? 0 : fail(-EBADMSG, "a slot has other bytes than were stored");
}

int Gds::load(const Extent& e, const kvshm_gds_piece* p, std::uint32_t n) {
  std::uint64_t covered = 0;
  if (int rc = check(e, p, n, files_.slot_bytes, &covered)) return rc;
  if (!session_.driver) return fail(-KVSHM_EUNSUPPORTED, "no device: %s", why_.c_str());
  Current now(session_);
  if (now.rc()) return refused(*session_.driver, now.rc(), "the context");
  StageLease stage(*this);
  std::string why;
  if (path(kLoad) == KVSHM_GDS_DIRECT) {
    int rc = 0;
    for (std::uint32_t i = 0; !rc && i < n; i++)
      if (!move(e, p[i], kLoad, &why)) rc = fail(-EIO, "%s", why.c_str());
    if (!rc && !trust_) {
      rc = stage.make();
      if (!rc) rc = verify(*stage, e, p, n, covered == e.bytes);
      if (rc) why = last_error();
    }
    if (!rc) return done(kLoad, KVSHM_GDS_DIRECT, covered);
    if (modes_[kLoad] == KVSHM_REQUIRE) return rc;
  }
  if (int rc = stage.make()) return rc;
  if (int rc = load_staged(*stage, e, p, n)) return rc;
  // Only now: what the host cannot read either is no fault of cuFile.
  if (!why.empty()) leave_direct(kLoad, why);
  return done(kLoad, KVSHM_GDS_HOST, covered);
}

int Gds::store(Extent* e, const kvshm_gds_piece* p, std::uint32_t n) {
  std::uint64_t covered = 0;
  if (int rc = check(*e, p, n, files_.slot_bytes, &covered)) return rc;
  if (covered != e->bytes) return fail(-EINVAL, "the pieces are not the whole block");
  if (!session_.driver) return fail(-KVSHM_EUNSUPPORTED, "no device: %s", why_.c_str());
  Current now(session_);
  if (now.rc()) return refused(*session_.driver, now.rc(), "the context");
  StageLease stage(*this);
  if (int rc = stage.make()) return rc;
  Stage& s = *stage;
  if (int rc = copy(s, s.data(), p, n, false)) return rc;
  payload_check(s.data(), e->bytes, e->check);
  std::string why;
  if (path(kStore) == KVSHM_GDS_DIRECT) {
    bool fine = true;
    for (std::uint32_t i = 0; fine && i < n; i++) fine = move(*e, p[i], kStore, &why);
    if (fine) return done(kStore, KVSHM_GDS_DIRECT, covered);
    if (modes_[kStore] == KVSHM_REQUIRE) return fail(-EIO, "%s", why.c_str());
  }
  const std::uint64_t bytes = whole(e->bytes);
  memset(s.data() + e->bytes, 0, bytes - e->bytes);
  if (const int rc = transfer(files_.files[e->file], s.data(), bytes, bytes, e->offset, true))
    return fail(rc == -ENOSPC ? rc : -EIO, "writing a slot: %s", strerror(-rc));
  if (!why.empty()) leave_direct(kStore, why);
  return done(kStore, KVSHM_GDS_HOST, covered);
}

void Gds::describe(kvshm_gds* out) {
  std::lock_guard<std::mutex> lock(mutex_);
  out->load = paths_[kLoad], out->store = paths_[kStore];
  for (unsigned i = 0; i < 3; i++) {
    out->loads[i] = blocks_[kLoad][i], out->load_bytes[i] = bytes_[kLoad][i];
    out->stores[i] = blocks_[kStore][i], out->store_bytes[i] = bytes_[kStore][i];
  }
  out->switches = switches_, out->buffers = std::uint32_t(buffers_.size());
  out->may_stage = may_stage_, out->stage_pinned = made_ && pinned_;
  snprintf(out->why, sizeof out->why, "%s", why_.c_str());
}

}  // namespace kvshm::tier
