// Whoever registers memory with a device: a copy of the user's functions, or CUDA's.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kvshm.h"

namespace kvshm {

class Backend {
 public:
  Backend() = default;
  explicit Backend(const kvshm_device_backend& b);  // the name is copied, too
  bool same(const kvshm_device_backend& b) const;
  const char* name() const { return name_; }
  std::uint64_t most() const { return b_.max_bytes ? b_.max_bytes : ~std::uint64_t{0}; }
  // After anything but KVSHM_DEVICE_OK no error is left pending.
  int add(void* data, std::size_t bytes);
  int remove(void* data);
  bool covers(const void* data, std::size_t bytes);
  std::string text(int code);
  void finish();  // once; no other call after it

 private:
  int checked(int rc);
  kvshm_device_backend b_ = KVSHM_DEVICE_BACKEND_INIT;
  char name_[16] = {};
};

}  // namespace kvshm
