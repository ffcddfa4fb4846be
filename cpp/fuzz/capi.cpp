// The C API with any arguments on a sound arena: ids, handles, keys, counts, null pointers, sizes.
// Each wrong one is an error, and the arena and what others hold in it stay whole.
#include <unistd.h>

#include <cstring>

#include "player.hpp"

using namespace kvshm_fuzz;

namespace {

void broken(int invariant, std::uint32_t id, const char* what, void*) {
  // The dead process of the scene stands in I6, I7 and I12 until somebody reaps it.
  if (invariant != 6 && invariant != 7 && invariant != 12) found(what, invariant, id);
}

// Names, sizes and modes of an attach, where there is no arena to be had.
void options(Feed& f) {
  kvshm_options o = KVSHM_OPTIONS_INIT;
  const unsigned how = f.byte();
  // A size beyond the struct's own is the caller's word that there is more: not taken back here.
  o.size = how & 1 ? f.odd() % sizeof o : sizeof o;
  if (how & 2) o.bytes = f.odd();
  if (how & 4) o.block_bytes = f.odd();
  if (how & 8) o.blocks = f.odd();
  o.pin = how & 16 ? std::uint32_t(f.odd()) : std::uint32_t(KVSHM_OFF);
  o.huge = how & 32 ? std::uint32_t(f.odd()) : std::uint32_t(KVSHM_OFF);
  o.numa = how & 64 ? std::int32_t(f.odd()) : KVSHM_NUMA_AUTO;
  o.flags = KVSHM_NO_HELPER;
  o.timeout_ms = 1;
  const std::string model = f.text(20);
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  id.model = model.c_str();
  id.flags = KVSHM_UNKNOWN_WEIGHTS;
  id.block_tokens = std::uint32_t(f.odd());
  if (how & 128) o.identity = &id;
  std::string name = f.one_in(3) ? "auto" : f.text(80);
  if (name.find(host::kName) == 0) name = "x";
  kvshm_arena* out = nullptr;
  const bool null = f.one_in(20);
  const auto bring = how & 4   ? kvshm_attach
                     : how & 8 ? kvshm_open
                               : kvshm_create;  // the host in memory has room for no other
  const int rc = bring(null ? nullptr : &out, f.one_in(20) ? nullptr : name.c_str(), &o);
  if (rc >= 0 || out) found("an attach to nothing", rc);
  const int gone = kvshm_remove(f.one_in(20) ? nullptr : name.c_str(), nullptr, f.below(2));
  if (gone >= 0) found("nothing was removed", gone);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Scene& scene = Scene::get();
  host::Inside in;
  scene.reset();
  Feed f(data, size);
  if (f.one_in(8)) options(f);
  if (int rc = scene.attach(kvshm::Mode::kAttach, plain_options()))
    found("no attach to a sound arena", rc);
  {
    Player player(scene, f, true);
    while (f.more() && player.calls() < 200) player.one();
  }
  scene.close();
  // Whatever it did, its end gives back all that it had.
  kvshm_stats s{};
  s.size = sizeof s;
  kvshm_get_stats(scene.other(), &s);
  // A fill of the other's that it joined and published is one of the other's holds by now.
  if (s.blocks_filling > scene.filling || s.slots_used > 2 ||
      s.blocks_held + s.blocks_filling > scene.held + scene.filling)
    found("something is still held", (long long)s.blocks_held, (long long)s.blocks_filling);
  kvshm_is_valid(scene.other(), broken, nullptr);
  return 0;
}
