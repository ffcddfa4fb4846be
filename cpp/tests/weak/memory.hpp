// SPDX-License-Identifier: Apache-2.0
// The simulated memory: which words of the arena obey the C++ memory model in Relacy's hands, and
// which order of the core is weakened. All other atomics are plain memory, seen by everybody at
// once: they hide no error of a watched word, since they order nothing.
#pragma once
#include <cstdint>
#include <string>

namespace weak {

void watch(void* word, unsigned size);  // in before(): its present value is seen by all threads
void forget_all();                      // in after()
void abandon_all();                     // of a run that failed, whose memory Relacy has taken back

// A negative control: the statement's orders become relaxed.
//   M:fill.13         the statement under this mark
//   FILE: TEXT        the lines of cpp/FILE with this text
//   A & B             both: where either order alone is enough
// False: no such place.
bool weaken(const std::string& what);
void restore();
std::uint64_t weakened_accesses();  // how often the weakened statement was met

}  // namespace weak
