// SPDX-License-Identifier: Apache-2.0
#include "devices.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "arena/layout.hpp"

namespace torture {

void Devices::busy(const std::string& name, const std::vector<unsigned>& slots) {
  idle();
  file_.reset(open(("/dev/shm/kvshm." + name).c_str(), O_RDWR | O_CLOEXEC));
  struct stat st;
  if (!file_ || fstat(file_.get(), &st) || st.st_size < off_t(sizeof(kvshm::Superblock)))
    return file_.reset();
  bytes_ = std::size_t(st.st_size);
  void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (p == MAP_FAILED) return file_.reset();
  map_ = p;
  madvise(map_, bytes_, MADV_DONTFORK);
  if (static_cast<const kvshm::Superblock*>(map_)->magic.load() != kvshm::kMagic) return idle();
  // Nobody can claim a slot from here on, so whoever dies in it was there before. One whose process
  // is dead already may have been reaped.
  for (const unsigned slot : slots)
    if (kvshm::lock_byte(file_.get(), false, kvshm::device_byte(slot)) == 0) {
      if (kvshm::byte_locked(file_.get(), kvshm::life_byte(slot)) == 1)
        slots_.push_back(slot);
      else
        kvshm::unlock_byte(file_.get(), kvshm::device_byte(slot));
    }
}

void Devices::died(const Record& r) {
  if (std::find(slots_.begin(), slots_.end(), r.slot.load()) == slots_.end()) return;
  for (const auto& t : r.transfers)
    if (const std::uint64_t under_way = t.load()) {
      transfers_.push_back(under_way);
      late++;
    }
}

void Devices::write() {
  if (!map_) return;
  const auto& g = static_cast<const kvshm::Superblock*>(map_)->geometry;
  for (const std::uint64_t t : transfers_) {
    const std::uint64_t words = g.block_bytes / 8, part = transfer_part(t),
                        parts = transfer_parts(t);
    const std::uint64_t first = words * part / parts, last = words * (part + 1) / parts;
    std::byte* const block =
        static_cast<std::byte*>(map_) + g.data_off + transfer_block(t) * g.block_bytes;
    std::memset(block + 8 * first, 0xda, 8 * (last - first));
  }
}

std::uint64_t Devices::slots() const {
  std::uint64_t bits = 0;
  for (const unsigned slot : slots_) bits |= std::uint64_t{1} << slot;
  return bits;
}

void Devices::idle() {
  transfers_.clear();
  // By hand: workers forked meanwhile have the description, too.
  for (const unsigned slot : slots_) kvshm::unlock_byte(file_.get(), kvshm::device_byte(slot));
  slots_.clear();
  if (map_) munmap(map_, bytes_);
  map_ = nullptr;
  file_.reset();
}

}  // namespace torture
