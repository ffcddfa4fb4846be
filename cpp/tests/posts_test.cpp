// SPDX-License-Identifier: Apache-2.0
// Posts: one holder at a time, vacant the moment that it ends, never inherited.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arena/lock.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {
constexpr std::uint32_t kEvictor = KVSHM_POST_EVICTOR;
}

TEST(Posts, OneHolderAtATime) {
  Pool pool;
  kvshm_arena* b = pool.another();
  EXPECT_EQ(kvshm_elect(pool.a, kEvictor), 0);
  EXPECT_EQ(kvshm_elect(pool.a, kEvictor), 0);  // has it already
  EXPECT_EQ(kvshm_elect(b, kEvictor), -EAGAIN);
  EXPECT_EQ(kvshm_elect(b, KVSHM_POST_CONTROLLER), 0);  // another post
  EXPECT_EQ(kvshm_elect(pool.a, KVSHM_POST_CONTROLLER), -EAGAIN);
  EXPECT_EQ(kvshm_resign(b, kEvictor), 0);  // is not its to give
  EXPECT_EQ(kvshm_elect(b, kEvictor), -EAGAIN);
  EXPECT_EQ(kvshm_resign(pool.a, kEvictor), 0);
  EXPECT_EQ(kvshm_elect(b, kEvictor), 0);
  EXPECT_EQ(kvshm_elect(pool.a, kvshm::kPosts), -EINVAL);
  EXPECT_EQ(kvshm_resign(pool.a, ~0u), -EINVAL);
}

TEST(Posts, CloseLetsItGo) {
  Pool pool;
  kvshm_arena* b = attach(pool.name);
  ASSERT_EQ(kvshm_elect(b, kEvictor), 0);
  ASSERT_EQ(kvshm_close(b, 1000), 0);
  EXPECT_EQ(kvshm_elect(pool.a, kEvictor), 0);
}

// The holder forks a child, which lives on, and is killed: the post is free at once.
TEST(Posts, AKilledHolderLeavesItAndAChildDoesNotKeepIt) {
  Pool pool;
  int ready[2], hold[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(hold), 0);
  const pid_t holder = fork();
  if (!holder) {
    kvshm_arena* b = attach(pool.name);
    const bool got = b && kvshm_elect(b, kEvictor) == 0;
    if (!fork()) {  // until the test closes its end
      close(hold[1]);
      char c;
      (void)!read(hold[0], &c, 1);
      _exit(0);
    }
    (void)!write(ready[1], got ? "y" : "n", 1);
    pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(kvshm_elect(pool.a, kEvictor), -EAGAIN);
  ASSERT_EQ(kill(holder, SIGKILL), 0);
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  EXPECT_EQ(kvshm_elect(pool.a, kEvictor), 0);
  for (int fd : {ready[0], ready[1], hold[0], hold[1]}) close(fd);
}

TEST(Posts, NoElectionOnARemovedArena) {
  Pool pool;
  kvshm_arena* b = pool.another();
  ASSERT_EQ(kvshm_elect(pool.a, kEvictor), 0);
  ASSERT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 1), 0);
  EXPECT_EQ(kvshm_elect(b, kEvictor), -ESTALE);
  EXPECT_EQ(kvshm_resign(pool.a, kEvictor), 0);
}
