// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <cstdio>
#include <vector>

#include "payload.hpp"
#include "worker.hpp"

namespace torture {
namespace {

void add_broken(int invariant, std::uint32_t id, const char* what, void* user) {
  auto& text = *static_cast<std::string*>(user);
  if (text.size() > 1000) return;
  char line[160];
  std::snprintf(line, sizeof line, "I%d, block %u: %s; ", invariant, id, what);
  text += line;
}

// Bytes and index entries of what is READY. Keys that are not those of chains belong to objects.
void check_blocks(kvshm_arena* a, const Shape& shape, std::string* wrong) {
  for (std::uint32_t id = 0; id < shape.blocks && wrong->size() < 1000; id++) {
    kvshm_block_info b = KVSHM_BLOCK_INFO_INIT;
    kvshm_get_block(a, id, &b);
    if (b.state != KVSHM_READY && b.state != KVSHM_READY_LAST) continue;
    block_key key;
    std::copy(b.key, b.key + key.size(), key.begin());
    if (is_chain_key(shape, key) &&
        wrong_word(kvshm_block_data(a, id), shape.block_bytes, key, b.seq) >= 0)
      *wrong += "block " + std::to_string(id) + " has wrong bytes; ";
    if (b.flags & (KVSHM_F_DUPLICATE | KVSHM_F_PRIVATE | KVSHM_F_FAILED)) continue;
    kvshm_handle h;
    const int rc = kvshm_acquire(a, b.key, KVSHM_NO_TOUCH, &h);
    if (rc || h.id != id) *wrong += "block " + std::to_string(id) + " is not found by its key; ";
    if (rc == 0) kvshm_drop(a, &h, 1);
  }
}

void check_objects(kvshm_arena* a, const Shape& shape, std::string* wrong) {
  for (std::uint32_t n = 0; n < shape.objects; n++) {
    const block_key key = object_key(n);
    kvshm_object* o = nullptr;
    if (kvshm_object_get(a, key.data(), &o)) continue;
    std::vector<std::uint8_t> bytes(kvshm_object_bytes(o));
    if (kvshm_object_read(o, 0, bytes.data(), bytes.size()) || !object_right(key, bytes))
      *wrong += "object " + std::to_string(n) + " is not of one put; ";
    kvshm_object_close(o);
  }
}

void check_sums(kvshm_arena* a, const Shape& shape, std::string* wrong) {
  kvshm_stats s = {};
  s.size = sizeof s;
  kvshm_get_stats(a, &s);
  const std::uint64_t used =
      s.blocks_filling + s.blocks_held + s.blocks_inactive + s.blocks_evicting;
  if (s.blocks_total != shape.blocks || used + s.blocks_free != shape.blocks)
    *wrong += "used " + std::to_string(used) + " and free " + std::to_string(s.blocks_free) +
              " are not " + std::to_string(shape.blocks) + "; ";
}

// Everything can be had again, in one piece of work, and nothing is left over.
void check_capacity(kvshm_arena* a, const Shape& shape, std::string* wrong) {
  kvshm_stats s = {};
  s.size = sizeof s;
  kvshm_get_stats(a, &s);
  if (s.slots_used != 1) *wrong += std::to_string(s.slots_used) + " slots are in use; ";
  std::uint64_t all = 0, free = 0;
  if (kvshm_reset_inactive(a, &all, &free))
    *wrong += "after a reset " + std::to_string(free) + " of " + std::to_string(all) + " free; ";
  std::vector<kvshm_handle> h(shape.blocks);
  const int rc = kvshm_allocate(a, shape.blocks, nullptr, nullptr, h.data(), nullptr, nullptr);
  if (rc)
    *wrong += std::string("all blocks cannot be had: ") + kvshm_strerror(rc) + "; ";
  else if (kvshm_abort(a, h.data(), shape.blocks))
    *wrong += "all blocks cannot be given back; ";
}

}  // namespace

std::string check_quiet(const std::string& name, const Shape& shape, bool alone) {
  std::string wrong;
  // Opened, not attached: all who came to make it may have died.
  const kvshm_options o = open_options(shape, false);
  kvshm_arena* a = nullptr;
  if (const int rc = kvshm_open(&a, name.c_str(), &o))
    return std::string("open: ") + kvshm_strerror(rc) + " (" + kvshm_last_error() + ")";
  if (kvshm_reap(a, nullptr)) wrong += "reap failed; ";
  if (kvshm_is_valid(a, add_broken, &wrong) < 0) wrong += "is_valid failed; ";
  check_blocks(a, shape, &wrong);
  check_objects(a, shape, &wrong);
  check_sums(a, shape, &wrong);
  if (alone && wrong.empty()) {
    check_capacity(a, shape, &wrong);
    if (kvshm_is_valid(a, add_broken, &wrong) < 0) wrong += "is_valid failed; ";
  }
  if (kvshm_close(a, 5000)) wrong += "the checker cannot detach; ";
  return wrong;
}

}  // namespace torture
