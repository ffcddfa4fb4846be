// Damage to the metadata of the scene: bits and bytes anywhere, and wrong values where they matter.
#include <cstring>

#include "index/index.hpp"
#include "poison.hpp"
#include "scene.hpp"

namespace kvshm_fuzz {

using namespace kvshm;

namespace {

struct Range {
  std::uint64_t from, bytes;
};

Range section(const Geometry& g, unsigned n) {
  switch (n) {
    case 0:
      return {0, sizeof(Superblock)};
    case 1:  // of the first slots, where somebody is
      return {g.slots_off, 4 * sizeof(SlotRecord)};
    case 2:
      return {g.slots_off, kSlots * sizeof(SlotRecord)};
    case 3:
      return {g.regions_off, g.region_words * 8 * kSlots};
    case 4:
    case 5:
      return {g.hot_off, g.blocks * sizeof(Hot)};
    case 6:
      return {g.cold_off, g.blocks * sizeof(Cold)};
    case 7:
    case 8:
      return {g.index_off, g.buckets * kIndexWays * 8};
    case 9:
      return {g.free_off, g.ghost_off - g.free_off};
    case 10:
      return {g.ghost_off, g.marks_off - g.ghost_off};
    default:
      return {g.marks_off, g.data_off - g.marks_off};
  }
}

template <class T>
std::uint64_t hot_at(const Geometry& g, std::uint32_t id, T Hot::* field) {
  alignas(64) static Hot one;
  return g.hot_off + id * sizeof(Hot) +
         std::uint64_t(reinterpret_cast<char*>(&(one.*field)) - reinterpret_cast<char*>(&one));
}

}  // namespace

void Scene::damage(Feed& f) {
  const Geometry& g = geometry_;
  const std::byte* m = host::memory();
  const unsigned how = f.byte();
  auto place = [&](std::uint64_t align) {
    const Range r = section(g, how / 16 % kSections);
    return r.from + (std::uint64_t(f.two()) * (r.bytes / align) >> 16) * align;
  };
  auto number = [&](std::uint64_t at, std::size_t n, std::uint64_t v) { write(at, &v, n); };
  const std::uint32_t id = how % 16 >= 8 ? f.byte() % kBlocks : 0;
  // Read as they are, even if the object was cut off before them.
  alignas(64) std::byte lines[2][sizeof(Hot)];
  auto line = [&](unsigned n, std::uint32_t block) {
    raw_copy(lines[n], m + g.hot_off + block * sizeof(Hot), sizeof(Hot));
    return reinterpret_cast<const Hot*>(lines[n]);
  };
  const Hot* hot = line(0, id);
  switch (how % 16) {
    case 0:
    case 1:
    case 2:
    case 3: {  // a bit
      const std::uint64_t at = place(1);
      std::uint8_t b;
      std::memcpy(&b, golden() + at, 1);
      b ^= std::uint8_t(1 << f.below(8));
      return write(at, &b, 1);
    }
    case 4: {
      const std::uint64_t at = place(8);
      return number(at, 8, f.odd());
    }
    case 5: {
      const std::uint64_t at = place(4);
      return number(at, 4, f.odd());
    }
    case 6: {  // a line
      std::uint8_t junk[64];
      const std::uint64_t at = place(8);
      std::memset(junk, f.byte(), sizeof junk);
      f.bytes(junk, f.below(65));
      return write(at, junk, sizeof junk);
    }
    case 7:  // counters and parameters that all go by
      switch (f.below(8)) {
        case 0:
          return number(offsetof(Superblock, marks_head), 8, f.odd());
        case 1:
          return number(offsetof(Superblock, marks_tail), 8, f.odd());
        case 2:
          return number(offsetof(Superblock, aged_at), 4, f.odd());
        case 3:
          return number(offsetof(Superblock, tick), 4, f.odd());
        case 4:
          return number(offsetof(Superblock, space), 4, f.odd());
        case 5:
          return number(offsetof(Superblock, policy) + 4 * f.below(32), 4, f.odd());
        case 6:
          return number(offsetof(Superblock, age_epoch), 4, f.odd());
        default:
          return number(g.slots_off + f.below(4) * sizeof(SlotRecord) + 8 * f.below(16), 8,
                        f.odd());
      }
    case 8: {  // the word: state, holders, generation
      word_t w = hot->word.load();
      const unsigned b = f.byte();
      w = with_state(w, State(b & 7));
      if (b & 8) w = with_holders(w, f.odd() & kHolderMask);
      if (b & 16) w ^= gen_bits(f.byte());
      if (b & 32) w ^= holder_bit(f.below(4));
      return number(hot_at(g, id, &Hot::word), 8, w);
    }
    case 9: {  // a link that is believed
      const std::uint32_t p = f.byte() % kBlocks;
      const auto check = std::uint32_t(line(1, p)->key[0].load());
      number(hot_at(g, id, &Hot::parent), 4, p);
      number(hot_at(g, id, &Hot::parent_check), 4, check);
      return number(hot_at(g, p, &Hot::child), 4, id);
    }
    case 10:
      return number(hot_at(g, id, &Hot::parent) + 4 * f.below(4), 4,
                    f.one_in(2) ? f.odd() : f.byte());
    case 11:
      return number(hot_at(g, id, &Hot::seq), 8, f.one_in(2) ? f.odd() : hot->seq.load() + 1);
    case 12:
      return number(hot_at(g, id, &Hot::flags), 1, f.byte());
    case 13: {  // parts, nparts, primary, length, user
      const std::uint64_t at = g.cold_off + id * sizeof(Cold);
      switch (f.below(4)) {
        case 0:
          return number(at + offsetof(Cold, nparts), 1, f.byte());
        case 1:
          return number(at + offsetof(Cold, parts), 8, f.odd());
        case 2:
          return number(at + offsetof(Cold, primary), 4, f.one_in(2) ? f.odd() : f.byte());
        default:
          return number(at + offsetof(Cold, user), 8, f.odd());
      }
    }
    case 14: {  // an entry that leads elsewhere, its tag kept; or one more of the same key
      kvshm_key k;
      key_of(id % kKeys, k);
      const Spot s = spot_of(Key::load(k), g.buckets);
      const std::uint64_t bucket = f.one_in(2) ? s.b2 : s.b1;
      const std::uint64_t at = g.index_off + (bucket * kIndexWays + f.below(kIndexWays)) * 8;
      std::uint64_t v = s.tag << 32 | std::uint32_t(f.one_in(2) ? f.odd() : f.byte());
      if (f.one_in(4)) v |= entry::kTentative;
      return number(at, 8, v);
    }
    default: {  // two blocks of one key
      const std::uint32_t to = f.byte() % kBlocks;
      return write(g.hot_off + to * sizeof(Hot), lines[0], sizeof(Hot));
    }
  }
}

}  // namespace kvshm_fuzz
