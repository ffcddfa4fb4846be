// A live arena whose metadata is damaged, before the attach, between calls and in the middle of
// them: errors and misses are allowed; a crash, a look outside, a call without end are not.
#include "player.hpp"

using namespace kvshm_fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Scene& scene = Scene::get();
  host::Inside in;
  scene.reset();
  Feed f(data, size);
  for (unsigned n = f.below(4); n > 0; n--) scene.damage(f);
  if (scene.attach(kvshm::Mode::kAttach, plain_options()) == 0) {
    Player player(scene, f, false);
    while (f.more() && player.calls() < 200) {
      const unsigned what = f.byte();
      if (what & 1) scene.damage(f);
      if (what & 2) scene.damage_later(f, what >> 2);
      player.one();
    }
  }
  scene.close();
  return 0;
}
