// SPDX-License-Identifier: Apache-2.0
// The torture's own parts: what is wrong in them looks like a fault of the library.
#include <atomic>
#include <cstdio>
#include <string>
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

namespace {

struct Ended {
  int status;
  std::string said;  // report and errors
};

// Runs the torture with a worker of that end; a sanitizer would end it in a way of its own.
Ended torture_with([[maybe_unused]] const std::string& fault) {
  Ended e{-1, ""};
#ifdef KVSHM_TORTURE
  const std::string command = "exec " KVSHM_TORTURE
                              " --quiet --seconds 20 --workers 1 --kills 500 --fault " +
                              fault + " 2>&1";
  FILE* const out = popen(command.c_str(), "r");
  if (!out) return e;
  char some[4096];
  for (std::size_t n; (n = fread(some, 1, sizeof some, out)) > 0;) e.said.append(some, n);
  e.status = WEXITSTATUS(pclose(out));
#endif
  return e;
}

}  // namespace

#ifdef KVSHM_TORTURE
#define SKIP_WITHOUT_TORTURE()
#else
#define SKIP_WITHOUT_TORTURE() GTEST_SKIP() << "a sanitizer ends a worker in a way of its own"
#endif

// Reported once, with what it said and the way there: the frames behind the signal's handler.
void expect_reported(const Ended& e, const char* how, const char* what, const char* frame) {
  SCOPED_TRACE(e.said.substr(0, 2000));
  EXPECT_EQ(e.status, 1);
  EXPECT_NE(e.said.find("\"violations\": 1,"), std::string::npos);
  EXPECT_NE(e.said.find(how), std::string::npos);
  EXPECT_NE(e.said.find(what), std::string::npos);
  const std::size_t at = e.said.find("\"last_words\": [[");
  ASSERT_NE(at, std::string::npos);
  EXPECT_NE(e.said.find(frame, at), std::string::npos);
}

TEST(Torture, AWorkerThatAbortsIsReportedWithItsBacktrace) {
  SKIP_WITHOUT_TORTURE();
  const Ended e = torture_with("abort");
  expect_reported(e, "ended with signal 6 in", ": signal 6, code -6, sent by process", "Hand4work");
  EXPECT_NE(e.said.find("(itself), at:"), std::string::npos) << e.said.substr(0, 2000);
}

TEST(Torture, AnExceptionThatNobodyCatchesIsReportedWhereItWasThrown) {
  SKIP_WITHOUT_TORTURE();
  const Ended e = torture_with("throw");
  expect_reported(e, "ended with signal 6 in", ": terminate called after throwing", "Hand4work");
  EXPECT_NE(e.said.find("what():  a fault on request"), std::string::npos)
      << e.said.substr(0, 2000);
}

TEST(Torture, AFullStackIsReportedFromAnotherOne) {
  SKIP_WITHOUT_TORTURE();
  expect_reported(torture_with("stack"), "ended with signal 11 in", ": signal 11, code ",
                  "kvshm_torture");
}

TEST(Torture, WhatAWorkerSaysIsAViolationHoweverItEnds) {
  SKIP_WITHOUT_TORTURE();
  expect_reported(torture_with("said"), "ended with s", ": a line on request\"",
                  "a line on request");
}
