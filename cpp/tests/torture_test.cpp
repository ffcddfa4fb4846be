// SPDX-License-Identifier: Apache-2.0
// The torture's own parts: what is wrong in them looks like a fault of the library.
#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "torture/shape.hpp"

using namespace torture;

TEST(Torture, KeysOfChainsAreToldFromOthers) {
  for (const Shape& s : shapes()) {
    for (std::uint32_t c = 0; c < s.chains; c++)
      for (std::uint32_t i = 0; i < s.length; i++) ASSERT_TRUE(is_chain_key(s, chain_key(c, i)));
    EXPECT_FALSE(is_chain_key(s, chain_key(s.chains, 0)));
    EXPECT_FALSE(is_chain_key(s, chain_key(0, s.length)));
    for (std::uint32_t n = 0; n < s.objects; n++) EXPECT_FALSE(is_chain_key(s, object_key(n)));
    EXPECT_FALSE(is_chain_key(s, {}));
    block_key half = chain_key(0, 0);
    half[0] ^= 2;
    EXPECT_FALSE(is_chain_key(s, half));
  }
}

// Once a table that the first to ask filled: two threads of a worker freed its nodes twice, and it
// ended with SIGABRT in an operation that had no part in it, once in some 100,000 deaths.
TEST(Torture, TwoThreadsOfAWorkerAskForKeysOfChains) {
  std::atomic<unsigned> wrong{0};
  const auto ask = [&] {
    for (int round = 0; round < 200; round++)
      for (const char* name : {"regions", "tiny16", "medium"}) {
        const Shape& s = *shape_named(name);
        wrong += !is_chain_key(s, chain_key(s.chains - 1, s.length - 1));
        wrong += is_chain_key(s, object_key(0));
      }
  };
  std::thread other(ask);
  ask();
  other.join();
  EXPECT_EQ(wrong, 0u);
}
