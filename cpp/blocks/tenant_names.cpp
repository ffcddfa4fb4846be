// SPDX-License-Identifier: Apache-2.0
// Names of tenants: a row is a name's by its hash, for good; its text is for people.
#include <errno.h>

#include <cstring>

#include "blocks/tenants.hpp"
#include "index/digest.hpp"

namespace kvshm {
namespace {

std::uint64_t hash_of(const char* name, std::size_t n) {
  std::uint8_t out[16];
  digest d("kvshm.v1.tenant", sizeof out);
  d.bytes(name, n);
  d.finish(out);
  std::uint64_t h;
  std::memcpy(&h, out, sizeof h);
  return h ? h : 1;
}

// By everybody who asks: who claimed the row may have died before it had written the name.
void write_name(Tenant& row, const char* name, std::size_t n) {
  char text[sizeof row.name] = {};
  std::memcpy(text, name, n < sizeof text ? n : sizeof text - 1);
  for (unsigned i = 0; i < 4; i++) {
    std::uint64_t w;
    std::memcpy(&w, text + 8 * i, 8);
    if (row.name[i].load(std::memory_order_relaxed) == w) continue;
    KVSHM_STEP("tenant.name");
    row.name[i].store(w, std::memory_order_relaxed);
  }
}

}  // namespace

int tenant_number(Arena& a, const char* name) {
  const std::size_t n = name ? strnlen(name, KVSHM_TENANT_NAME_MAX + 1) : 0;
  if (!n || n > KVSHM_TENANT_NAME_MAX)
    return fail(-EINVAL, "a tenant's name has 1 to %d bytes", int(KVSHM_TENANT_NAME_MAX));
  const std::uint64_t hash = hash_of(name, n);
  // Rows never change their owner, and all look along the same way: a name has one row.
  for (unsigned i = 0; i < kTenants - 1; i++) {
    const unsigned t = 1 + unsigned((hash + i) % (kTenants - 1));
    Tenant& row = a.tenants[t];
    std::uint64_t owner = row.name_hash.load(std::memory_order_relaxed);
    if (!owner) {
      KVSHM_STEP("tenant.claim");
      if (row.name_hash.compare_exchange_strong(owner, hash, std::memory_order_relaxed))
        owner = hash;
    }
    if (owner != hash) continue;
    write_name(row, name, n);
    return int(t);
  }
  return fail(-ENOSPC, "all %u tenants of arena %s have a name: '%.60s' would be one more",
              kTenants - 1, a.name.c_str(), name);
}

}  // namespace kvshm
