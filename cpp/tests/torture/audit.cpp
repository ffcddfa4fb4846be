// SPDX-License-Identifier: Apache-2.0
#include "audit.hpp"

#include <atomic>

#include "blocks/descriptor.hpp"

namespace torture {
namespace {

struct Look {
  bool primary;
  kvshm::Key key;
  std::uint64_t seq;
};

// Private, failed and duplicate blocks may share a key with a primary; the flags are fixed before
// READY, so that they and the key are those of the life `seq` if it is READY before and after.
Look look(const kvshm::Hot& h) {
  Look l{};
  l.seq = h.seq.load(std::memory_order_acquire);
  if (!kvshm::is_ready(h.word.load(std::memory_order_acquire))) return l;
  constexpr unsigned kOthers = kvshm::kDuplicate | kvshm::kPrivate | kvshm::kFailed;
  l.primary = !(h.flags.load(std::memory_order_acquire) & kOthers);
  // acquire on each: none may move behind the second look at the word
  l.key = {h.key[0].load(std::memory_order_acquire), h.key[1].load(std::memory_order_acquire)};
  if (!kvshm::is_ready(h.word.load(std::memory_order_acquire)) || h.seq.load() != l.seq)
    l.primary = false;
  return l;
}

}  // namespace

void find_two_primaries(Shared& s, const kvshm_block_record* table, std::uint64_t blocks,
                        std::uint64_t first, std::uint64_t most) {
  const auto* hot = reinterpret_cast<const kvshm::Hot*>(table);
  for (std::uint64_t n = 0; n < most && n < blocks; n++) {
    const std::uint64_t i = (first + n) % blocks;
    const Look one = look(hot[i]);
    if (!one.primary) continue;
    for (std::uint64_t j = 0; j < blocks; j++) {
      if (j == i || !(hot[j].load_key() == one.key)) continue;
      const Look other = look(hot[j]);
      if (!other.primary || !(other.key == one.key)) continue;
      const Look again = look(hot[i]);  // READY in the same life before and after the other one
      if (again.primary && again.seq == one.seq)
        violation(s, "blocks %u and %u are READY primaries of one key", unsigned(i), unsigned(j));
    }
  }
}

}  // namespace torture
