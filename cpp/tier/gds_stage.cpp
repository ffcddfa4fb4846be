#include "tier/gds_stage.hpp"

#include <sys/mman.h>

namespace kvshm::tier {

using namespace cuda;

bool Stage::make(std::uint64_t bytes, std::string* why) {
  const Driver& d = *session_.driver;
  // Not the default stream: it would wait for what the engine has queued on its own.
  if (bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      *why = "no memory for a staging buffer";
      return false;
    }
    data_ = static_cast<std::byte*>(p), bytes_ = bytes;
    madvise(p, bytes, MADV_DONTFORK);
    pinned_ = d.host_register(p, bytes, kPortable | kDeviceMap) == kSuccess;
  }
  const Result rc = d.stream_create(&stream_, kNonBlocking);
  if (rc) *why = "cuStreamCreate: " + text_of(d, rc);
  return rc == kSuccess;
}

Stage::~Stage() {
  const Driver& d = *session_.driver;
  if (stream_) d.stream_wait(stream_), d.stream_destroy(stream_);
  if (pinned_) d.host_unregister(data_);
  if (data_) munmap(data_, bytes_);
}

}  // namespace kvshm::tier
