// Memory of the host between a file and a device, page-aligned, and a stream to copy it by.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda_context.hpp"

namespace kvshm::tier {

class Stage {
 public:
  explicit Stage(const cuda::Session& s) : session_(s) {}
  Stage(const Stage&) = delete;
  ~Stage();  // in the session's context
  bool make(std::uint64_t bytes, std::string* why);
  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  bool pinned() const { return pinned_; }
  // Queue a copy; nothing of it has arrived before wait(). The driver's code.
  cuda::Result copy(cuda::Pointer to, cuda::Pointer from, std::uint64_t bytes) {
    return session_.driver->copy(to, from, bytes, stream_);
  }
  cuda::Result wait() { return session_.driver->stream_wait(stream_); }

 private:
  const cuda::Session& session_;
  void* stream_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool pinned_ = false;
};

}  // namespace kvshm::tier
