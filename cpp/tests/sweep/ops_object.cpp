// SPDX-License-Identifier: Apache-2.0
// Objects: there as a whole or not at all.
#include <set>

#include "scene.hpp"

namespace kvshm_sweep {
namespace {

const block_key kKey = key_of(950);
constexpr std::size_t kSize = 300;  // three blocks

// One that is given up has other bytes: beside an operation that commits its own under the same key,
// the bytes tell whose is found.
std::vector<char> text(bool committed) {
  std::vector<char> t(kSize);
  for (std::size_t i = 0; i < t.size(); i++) t[i] = char((committed ? 'a' : 'A') + i % 23);
  return t;
}

// All it has is right, or there is none.
int look(kvshm_arena* a) {
  kvshm_object* o = nullptr;
  const int rc = kvshm_object_get(a, kKey.data(), &o);
  if (rc == -ENOENT) return 0;
  if (rc) return 10;
  std::vector<char> got(kSize);
  const bool right = kvshm_object_bytes(o) == kSize &&
                     kvshm_object_read(o, 0, got.data(), kSize) == 0 && got == text(true);
  kvshm_object_close(o);
  return right ? 0 : kWrong + 20;
}

// Its payload is not that of a block's key: it has to be gone when the payloads are checked.
int forget(kvshm_arena* a) {
  if (int rc = look(a)) return rc;
  kvshm_clear(a);
  return 0;
}

int store(kvshm_arena* a, bool commit) {
  kvshm_object* o = nullptr;
  const std::vector<char> t = text(commit);
  if (kvshm_object_create(a, kKey.data(), kSize, nullptr, &o)) return 1;
  if (kvshm_object_write(o, 0, t.data(), kSize)) return 2;
  int rc = 0;
  if (commit && kvshm_object_commit(o)) rc = 3;
  kvshm_object_close(o);
  return rc;
}

// A head that has lost a part: whoever gets it, clears it away.
void headless(Scene& s) {
  EXPECT_EQ(store(s.a, true), 0);
  std::set<std::string> known;
  for (const auto& k : s.cached) known.insert(std::string(k.begin(), k.end()));
  known.insert(std::string(s.held_key.begin(), s.held_key.end()));
  known.insert(std::string(kKey.begin(), kKey.end()));
  for (std::uint32_t id = 0; id < kBlocks; id++) {
    const kvshm_block_info b = block(s.a, id);
    if (b.state != KVSHM_READY || known.count(std::string(b.key, b.key + 16))) continue;
    EXPECT_EQ(kvshm_evict(s.a, &b.key, 1), 1);
    return;
  }
  ADD_FAILURE() << "the object has no part";
}

}  // namespace

std::vector<Op> object_ops() {
  return {
      {.name = "object, given up",
       .act =
           [](kvshm_arena* a, Scene&) {
             if (int rc = store(a, false)) return rc;
             return look(a);  // there is none, or another's
           }},
      {.name = "object",
       .act =
           [](kvshm_arena* a, Scene&) {
             if (int rc = store(a, true)) return rc;
             return look(a);
           },
       .after = forget,
       .may_go = 0xf,
       .goes = 0xf},
      {.name = "object without a part",
       .act =
           [](kvshm_arena* a, Scene&) {
             kvshm_object* o = nullptr;
             return kvshm_object_get(a, kKey.data(), &o) == -ENOENT ? 0 : kWrong + 22;
           },
       .setup = headless,
       .after = forget,
       .may_go = 0xf,
       .goes = 0xf},
  };
}

}  // namespace kvshm_sweep
