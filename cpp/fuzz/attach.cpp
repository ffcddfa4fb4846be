// Any bytes in the place of an arena, any length: attach says what is wrong, or the arena works.
// open and remove get the same.
#include <cstring>

#include "arena/layout.hpp"
#include "player.hpp"

using namespace kvshm_fuzz;
using kvshm::Mode;
using kvshm::Superblock;

namespace {

// A geometry that adds up, of another size: what is refused must be refused for something else.
void other_geometry(Scene& scene, Feed& f) {
  kvshm::Geometry g{};
  const std::uint64_t block_bytes = f.one_in(2) ? 64u * f.byte() : f.odd();
  const std::uint64_t blocks = f.one_in(2) ? f.two() : f.odd();
  if (!kvshm::compute_geometry(0, block_bytes, blocks, kvshm::kPage, &g)) return;
  if (f.one_in(8)) g.bytes += 4096u * f.byte();
  scene.write(offsetof(Superblock, geometry), &g, sizeof g);
  if (g.bytes <= host::kRoom / 8) host::resize(g.bytes);
  scene.reshaped();
}

void damage_superblock(Scene& scene, Feed& f) {
  const std::size_t at = f.two() % sizeof(Superblock);
  std::uint8_t junk[128];
  const std::uint64_t v = f.odd();
  switch (f.below(6)) {
    case 0:
      return scene.write(at, &v, 1);
    case 1:
      return scene.write(at & ~7u, &v, 8);
    case 2:  // a number of the geometry
      return scene.write(offsetof(Superblock, geometry) + 8 * f.below(17), &v, 8);
    case 3: {  // what is looked at first
      static constexpr std::size_t first[] = {offsetof(Superblock, magic),
                                              offsetof(Superblock, layout_version),
                                              offsetof(Superblock, superblock_bytes),
                                              offsetof(Superblock, layout_hash),
                                              offsetof(Superblock, dead),
                                              offsetof(Superblock, page_bytes),
                                              offsetof(Superblock, raw),
                                              offsetof(Superblock, identity_length)};
      return scene.write(first[f.below(8)], &v, 4);
    }
    default: {
      const std::size_t n = f.below(129);
      f.bytes(junk, n);
      return scene.write(at, junk, n);
    }
  }
}

void damage_size(Feed& f) {
  const std::size_t whole = host::size();
  switch (f.below(4)) {
    case 0:
      return host::resize(f.two() % 5000u);
    case 1:
      return host::resize(whole - f.two() % (whole + 1));
    case 2:
      return host::resize(whole + f.two());
    default:
      return host::resize((f.two() * (whole / 65536 + 1)) % (whole + 4096));
  }
}

// Sizes of any kind: what is accepted lies one after the other and ends where it says.
void geometry(Feed& f) {
  const std::uint64_t bytes = f.odd(), block_bytes = f.odd(), blocks = f.odd();
  const std::uint64_t page = f.one_in(2) ? kvshm::kHugePage : kvshm::kPage;
  kvshm::Geometry g{};
  if (!kvshm::compute_geometry(bytes, block_bytes, blocks, page, &g)) return;
  const std::uint64_t* at = &g.slots_off;
  for (unsigned i = 1; i < 12; i++)
    if (at[i] < at[i - 1] || at[i] % kvshm::kPage) found("sections in disorder", i);
  if (!g.blocks || (blocks && g.blocks != blocks) || g.bytes % page ||
      g.data_off + g.blocks * g.block_bytes > g.bytes ||
      (bytes && g.bytes > (bytes / page + 1) * page))
    found("a geometry that does not add up", (long long)g.blocks, (long long)g.bytes);
}

// All slots are taken by the living, whatever their records say.
void occupy(Scene& scene, Feed& f) {
  host::hold_lives(kvshm::kSlots);
  std::uint8_t record[64 + 56];
  std::memset(record, f.byte(), sizeof record);
  f.bytes(record, f.byte() % sizeof record);
  for (unsigned s = 0; s < kvshm::kSlots; s++)
    scene.write(scene.geometry().slots_off + s * sizeof(kvshm::SlotRecord), record, sizeof record);
}

void damage(Scene& scene, Feed& f) {
  switch (f.below(8)) {
    case 1:
      return other_geometry(scene, f);
    case 2:
      return damage_size(f);
    case 3:
    case 4:
      return scene.damage(f);
    default:
      return damage_superblock(scene, f);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Scene& scene = Scene::get();
  host::Inside in;
  scene.reset();
  Feed f(data, size);
  const unsigned how = f.byte();
  if (f.one_in(8)) geometry(f);
  for (unsigned n = how % 5; n > 0 && f.more(); n--) damage(scene, f);

  kvshm_options o = plain_options();
  o.timeout_ms = 1 + f.byte();
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  id.model = f.one_in(3) ? "another" : "fuzz/model";
  id.weights = f.one_in(16) ? nullptr : "w";
  id.block_tokens = 16;
  if (how & 32) o.identity = &id;
  if (how & 64) o.block_bytes = f.one_in(2) ? f.odd() : kBlockBytes;
  if (f.one_in(16)) o.blocks = f.byte();
  const Mode mode = f.one_in(16) ? Mode::kOpen : f.one_in(64) ? Mode::kCreate : Mode::kAttach;
  const bool full = f.one_in(16);
  if (full) occupy(scene, f);
  const std::uint64_t begun = host::now_ms();
  const int rc = scene.attach(mode, o);
  if (host::now_ms() > begun + o.timeout_ms + 500) found("attach took longer than its limit");
  if (rc == 0) {
    {
      Player player(scene, f, false);
      while (f.more() && player.calls() < 8) player.one();
    }
    kvshm_clear(scene.victim());
    kvshm_is_valid(scene.victim(), nullptr, nullptr);
  } else if (rc > 0 || !*kvshm_last_error()) {
    found("a refusal without a text", rc);
  }
  if (full) host::release_lives();
  scene.close();
  if (f.one_in(8)) kvshm_remove(host::kName, nullptr, 1);
  return 0;
}
