// SPDX-License-Identifier: Apache-2.0
// Attach, leave, make, remove.
#include <signal.h>

#include "device_support.hpp"
#include "remains.hpp"
#include "scene.hpp"

namespace kvshm_sweep {
namespace {

kvshm_options spare_options() { return options({.blocks = 8, .block_bytes = 64}); }

void make_spare(Scene& s) {
  const kvshm_options o = spare_options();
  kvshm_arena* other = nullptr;
  EXPECT_EQ(kvshm_create(&other, s.spare.c_str(), &o), 0) << kvshm_last_error();
  EXPECT_EQ(kvshm_close(other, 1000), 0);
}

// Its creator died before it was whole.
void half_made_spare(Scene& s) {
  Child creator([&](Wire&) {
    follow({.die_at_name = "create.filled"});
    const kvshm_options o = spare_options();
    kvshm_arena* other = nullptr;
    kvshm_create(&other, s.spare.c_str(), &o);
    return 1;
  });
  EXPECT_EQ(creator.wait(), -SIGKILL);
}

int make(Scene& s, decltype(&kvshm_create) call) {
  const kvshm_options o = spare_options();
  kvshm_arena* other = nullptr;
  return -call(&other, s.spare.c_str(), &o);
}

int fail_to_make(Scene& s) {
  kvshm::set_step_error("attach.counts", ENOMEM);
  return make(s, kvshm_create) == ENOMEM ? 0 : 1;
}

int hold_much(kvshm_arena* a, Scene& s) {
  std::uint32_t ids[4];
  kvshm_lease lease;
  handles_t fills(2);
  const keys_t keys = keys_of(710, 2);
  if (kvshm_allocate(a, 2, raw(keys), nullptr, fills.data(), nullptr, nullptr)) return 1;
  if (put(a, key_of(800), KVSHM_ALLOW)) return 2;
  if (kvshm_fill_join(a, s.fill)) return 3;
  return kvshm_match(a, raw(s.cached), 4, ids, &lease) == 4 ? 0 : 4;
}

int register_device(kvshm_arena* a, Scene&) {
  const kvshm_device_options o = mock_options(0, KVSHM_REQUIRE);
  return -kvshm_register_device(a, &o);
}

}  // namespace

std::vector<Op> life_ops() {
  const auto leave = [](kvshm_arena* a, Scene&) { return -kvshm_close(a, 1000); };
  return {
      {.name = "close", .act = leave, .prepare = hold_much},
      {.name = "close, registered with a device",
       .act = leave,
       .prepare = register_device,
       .alone = true},
      {.name = "register with a device",
       .act =
           [](kvshm_arena* a, Scene& s) {
             if (int rc = register_device(a, s)) return rc;
             return -kvshm_unregister_device(a, 5000);
           },
       .alone = true},
      {.name = "attach and close", .act = leave, .from_attach = true, .alone = true},
      {.name = "attach in a dead one's slot",
       .act = leave,
       .setup = [](Scene& s) { leave_remains(s, nullptr); },
       .may_go = 8,
       .goes = 8,
       .from_attach = true,
       .alone = true},
      {.name = "create",
       .act = [](kvshm_arena*, Scene& s) { return make(s, kvshm_create); },
       .spare = true,
       .alone = true},
      {.name = "create, failing",
       .act = [](kvshm_arena*, Scene& s) { return fail_to_make(s); },
       .spare = true,
       .alone = true},
      {.name = "open what a dead one began",
       .act = [](kvshm_arena*, Scene& s) { return make(s, kvshm_open); },
       .setup = half_made_spare,
       .spare = true,
       .alone = true},
      {.name = "remove",
       .act = [](kvshm_arena*, Scene& s) { return -kvshm_remove(s.spare.c_str(), nullptr, 0); },
       .setup = make_spare,
       .spare = true,
       .alone = true},
  };
}

}  // namespace kvshm_sweep
