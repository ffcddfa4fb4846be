// SPDX-License-Identifier: Apache-2.0
// The step points and negative controls are in the tests' build, and nothing of them is in the
// library that is shipped; a step can make its call fail, and that is an orderly failure.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "arena/breaks.hpp"
#include "arena/step.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

std::string bytes_of(const char* path) {
  std::ifstream f(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(f), {});
}

// What would betray them: names of steps and controls, and parts of the symbols around them.
std::vector<std::string> traces() {
  std::vector<std::string> all = {"kStepNames", "set_step_hook", "step_error", "kBreaks",
                                  "set_broken", "steps.def",     "breaks.def"};
  for (std::string_view name : kvshm::kStepNames) all.emplace_back(name);
  for (const auto& b : kvshm::kBreaks) all.emplace_back(b.control);
  return all;
}

[[maybe_unused]] std::string found_in(const std::string& program, bool found) {
  std::string names;
  for (const auto& t : traces())
    if ((program.find(t) != std::string::npos) == found) names += t + " ";
  return names;
}

}  // namespace

TEST(Steps, TheLibraryHasNone) {
  // The same look at this program finds them: names as they are, symbols where debug info has them.
  const std::string mine = bytes_of("/proc/self/exe");
  for (std::string_view name : kvshm::kStepNames)
    EXPECT_NE(mine.find(name), std::string::npos) << name;
  for (const auto& b : kvshm::kBreaks)
    EXPECT_NE(mine.find(b.control), std::string::npos) << b.control;
  EXPECT_NE(mine.find("set_step_hook"), std::string::npos);
#ifdef KVSHM_ONE_BUILD
  GTEST_SKIP() << "a build with a sanitizer is for tests as a whole: its library has them";
#else
  const std::string library = bytes_of(KVSHM_LIBRARY);
  ASSERT_GT(library.size(), 100000u) << KVSHM_LIBRARY;
  ASSERT_NE(library.find("kvshm_allocate"), std::string::npos);
  EXPECT_EQ(found_in(library, true), "");
#endif
}

TEST(Steps, NamesAreUnique) {
  std::set<std::string_view> names(std::begin(kvshm::kStepNames), std::end(kvshm::kStepNames));
  EXPECT_EQ(names.size(), kvshm::kStepCount);
  EXPECT_FALSE(kvshm::set_broken("no such control", true));
}

// A system call that fails at a step: the error comes out, and nothing is left behind.
TEST(Steps, CallsFailInOrder) {
  Pool pool({.blocks = 8});
  const struct {
    const char* step;
    int error, from_create, from_attach;
  } cases[] = {
      {"create.size", ENOSPC, -ENOSPC, 0},         {"attach.map", ENOMEM, -ENOMEM, -ENOMEM},
      {"attach.counts", ENOMEM, -ENOMEM, -ENOMEM}, {"slot.keep", ENOMEM, -ENOMEM, -ENOMEM},
      {"object.open", EMFILE, -EMFILE, -EMFILE},
  };
  for (const auto& c : cases) {
    kvshm::set_step_error(c.step, c.error);
    const std::string name = fresh_name("fails");
    kvshm_options o = options({.blocks = 8, .timeout_ms = 500});
    kvshm_arena* a = nullptr;
    EXPECT_EQ(kvshm_create(&a, name.c_str(), &o), c.from_create) << c.step;
    EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 1), a ? 0 : -ENOENT) << c.step;
    if (a) kvshm_close(a, 1000);
    a = nullptr;
    EXPECT_EQ(kvshm_attach(&a, pool.name.c_str(), &o), c.from_attach) << c.step;
    kvshm::set_step_error(c.step, 0);
    if (a) kvshm_close(a, 1000);
    EXPECT_EQ(stats(pool.a).slots_used, 1u) << c.step;
    EXPECT_EQ(broken(pool.a), "") << c.step;
  }
  kvshm_arena* again = pool.another();  // no slot was lost
  ASSERT_NE(again, nullptr);
}

TEST(Steps, NoMemoryForALease) {
  Pool pool({.blocks = 8});
  const keys_t keys = keys_of(0, 3);
  for (const auto& k : keys) make_cached(pool.a, k);
  std::uint32_t ids[3];
  kvshm_lease lease = 1;
  kvshm::set_step_error("lease.take", ENOMEM);
  EXPECT_EQ(kvshm_match(pool.a, raw(keys), 3, ids, &lease), -ENOMEM);
  kvshm::set_step_error("lease.take", 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(kvshm_match(pool.a, raw(keys), 3, ids, &lease), 3);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
}
