#include "tier/admission.hpp"

namespace kvshm::tier {

Admission::Admission(std::uint32_t needed, std::uint32_t places)
    : needed_(needed), places_(needed > 1 ? places : 0) {}

bool Admission::offer(Key key) {
  if (needed_ <= 1) return true;
  const std::uint16_t epoch = std::uint16_t(offers_++ / (places_.size() * 8));
  Place& p = places_[key.lo % places_.size()];
  const std::uint32_t tag = std::uint32_t(key.hi) | 1;
  if (p.tag != tag) {
    // Another key's: it stays while its count does, so that a scan pushes nobody out.
    const unsigned behind = std::uint16_t(epoch - p.epoch);
    const unsigned left = p.tag && behind < 16 ? p.count >> behind : 0;
    if (left > 1) {
      p.count = std::uint16_t(left - 1);
      p.epoch = epoch;
      return false;
    }
    p = {tag, epoch, 0};
  }
  const unsigned behind = std::uint16_t(epoch - p.epoch);
  p.count = behind < 16 ? std::uint16_t(p.count >> behind) : std::uint16_t{0};
  p.epoch = epoch;
  if (p.count < 0xffff) p.count++;
  return p.count >= needed_;
}

}  // namespace kvshm::tier
