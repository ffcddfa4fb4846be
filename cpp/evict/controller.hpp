// SPDX-License-Identifier: Apache-2.0
// Who tunes the policy: records of uses, taken from all processes' rings, are handed to a function
// that somebody above this library has set; what it decides is published as a policy table.
//
// One process has the post (arena/posts.hpp) until it closes the arena or dies; where it is stopped,
// the last weight stays in force. All that it writes into the arena are hints, each a whole word.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// For all attachments of this process; fn = NULL: none. Before the first attach, or while no tick
// runs.
void set_controller(kvshm_controller_fn fn, void* user);
// One step, if there is a function, the policy records uses, and this process leads or can: the
// number of records taken. Never waits.
std::uint32_t step_controller(Arena& a);
// p was checked by the caller. expected: only over that version of the table; 0: over any, waiting a
// moment for another writer. Returns the new version, or 0.
std::uint64_t write_policy(Arena& a, const kvshm_policy& p, std::uint64_t expected = 0);

}  // namespace kvshm
