#include "device/backend.hpp"

#include <cstdio>

namespace kvshm {

Backend::Backend(const kvshm_device_backend& b) : b_(b) {
  std::snprintf(name_, sizeof name_, "%s", b.name && *b.name ? b.name : "unnamed");
}

bool Backend::same(const kvshm_device_backend& b) const {
  return b_.register_memory == b.register_memory && b_.user == b.user;
}

int Backend::checked(int rc) {
  if (rc != KVSHM_DEVICE_OK && b_.clear_error) b_.clear_error(b_.user);
  return rc;
}

int Backend::add(void* data, std::size_t bytes) {
  return checked(b_.register_memory(b_.user, data, bytes));
}

int Backend::remove(void* data) { return checked(b_.unregister_memory(b_.user, data)); }

bool Backend::covers(const void* data, std::size_t bytes) {
  return !b_.covers ||
         checked(b_.covers(b_.user, data, bytes) == 1 ? KVSHM_DEVICE_OK : KVSHM_DEVICE_ALREADY) ==
             KVSHM_DEVICE_OK;
}

std::string Backend::text(int code) {
  const char* known = b_.error_text ? b_.error_text(b_.user, code) : nullptr;
  if (!known && code == KVSHM_DEVICE_GONE) known = "there is no device or context";
  const std::string number = std::to_string(code < 0 ? -std::int64_t{code} : code);
  return known ? std::string(known) + " (" + number + ")" : "error " + number;
}

void Backend::finish() {
  if (b_.finish) b_.finish(b_.user);
}

}  // namespace kvshm
