// SPDX-License-Identifier: Apache-2.0
// sync=1: what can be found is in the file, records too, whoever else wrote the same page meanwhile.
#include <unistd.h>

#include <cstring>

#include "capi/call.hpp"
#include "tier/image.hpp"
#include "tier/tier.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

// READY slots whose record is not in the file; *ready: of how many.
unsigned unwritten(const kvshm::tier::Tier& t, unsigned* ready) {
  unsigned n = 0;
  *ready = 0;
  for (std::uint32_t s = 0; s < t.image->nblocks; s++) {
    if (!kvshm::is_ready(t.image->hot[s].word.load())) continue;
    const kvshm::tier::Place at = t.files.page(s / kvshm::tier::kRecordsPerPage);
    kvshm::tier::Bounce page(kvshm::tier::kPageBytes);
    EXPECT_EQ(pread(t.files.descriptors()[at.file], page.get(), page.size(), off_t(at.offset)),
              ssize_t(page.size()));
    const kvshm::tier::Record r = kvshm::tier::load_record(*t.image, s);
    const std::size_t mine = s % kvshm::tier::kRecordsPerPage * sizeof r;
    n += std::memcmp(page.get() + mine, &r, sizeof r) != 0;
    ++*ready;
  }
  return n;
}

TEST(TierSync, APageKeepsTheRecordsOfSlotsThatAreBeingSynced) {
  TierFile file("sync");
  Pool pool({400, 4096});
  TierSpec spec;
  spec.sync = 1;
  spec.bytes = 8 << 20;
  ASSERT_EQ(open_tier(pool.a, file.path, spec), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  for (unsigned round = 0; round < 30; round++) {
    for (unsigned i = 0; i < 12; i++) {  // one after the other: pages of few slots, one on another
      cache_chain(pool.a, keys_of(1000 * round + 10 * i, 1));
      usleep(1000);
    }
    ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0) << kvshm_last_error();
    unsigned ready;
    EXPECT_EQ(unwritten(*pool.a->tier.load(), &ready), 0u) << "round " << round;
    EXPECT_EQ(ready, (round + 1) * 12);
  }
}

}  // namespace
