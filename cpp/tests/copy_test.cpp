// SPDX-License-Identifier: Apache-2.0
// Each way to copy against memcpy, also those that this processor would not choose: the bytes
// asked for at any alignment of both ends, and not one beside them.
#include "device/copy.hpp"

#include <cstring>
#include <memory>
#include <random>

#include "support.hpp"

using namespace kvshm;

namespace {

constexpr std::size_t kGuard = 128, kRoom = 320 << 10;

struct Buffers {
  std::vector<unsigned char> from, got, want;
  Buffers() : from(kRoom + 2 * kGuard), got(from.size()), want(from.size()) {
    std::mt19937 random(7);
    for (auto& b : from) b = static_cast<unsigned char>(random());
  }
};

// Where the first byte lies within a cache line, whatever the allocator gave.
unsigned char* at(std::vector<unsigned char>& v, std::size_t offset) {
  void* p = v.data() + 64;
  std::size_t space = v.size() - 64;
  return static_cast<unsigned char*>(std::align(64, kRoom, p, space)) + offset;
}

void check(Buffers& b, const CopyVariant& v, std::size_t n, std::size_t to, std::size_t from) {
  const auto guard = static_cast<unsigned char>(0xa5 ^ n);
  std::memset(b.got.data(), guard, b.got.size());
  std::memset(b.want.data(), guard, b.want.size());
  std::memcpy(at(b.want, to), at(b.from, from), n);
  stream_copy_by(v, at(b.got, to), at(b.from, from), n);
  const std::size_t span = kGuard + 64 + n;
  ASSERT_EQ(std::memcmp(at(b.got, 0) - 64, at(b.want, 0) - 64, span), 0)
      << v.name << ": " << n << " bytes from line offset " << from << " to " << to;
}

class Copies : public testing::TestWithParam<CopyVariant> {};

}  // namespace

TEST_P(Copies, SmallSizesAtEveryAlignmentOfTheTarget) {
  if (!GetParam().works) GTEST_SKIP() << "this processor has no " << GetParam().name;
  Buffers b;
  for (std::size_t n = 0; n <= 1100; n += n < 600 ? 1 : 37)
    for (std::size_t to = 0; to < 64; to += 1 + n % 7)
      ASSERT_NO_FATAL_FAILURE(check(b, GetParam(), n, to, (to * 5 + n) % 64));
}

TEST_P(Copies, OddSizesAndOffsets) {
  if (!GetParam().works) GTEST_SKIP() << "this processor has no " << GetParam().name;
  Buffers b;
  std::mt19937 random(11);
  for (int i = 0; i < 400; i++) {
    const std::size_t n = random() % (i % 8 ? 9000 : kRoom - 64);
    ASSERT_NO_FATAL_FAILURE(check(b, GetParam(), n, random() % 64, random() % 64));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Copies,
                         testing::ValuesIn(copy_variants().begin(), copy_variants().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Copies, TheChoiceIsTheFirstThatWorks) {
  for (const CopyVariant& v : copy_variants())
    if (v.works) {
      EXPECT_STREQ(stream_copy_variant(), v.name);
      return;
    }
  ADD_FAILURE() << "none works";
}
