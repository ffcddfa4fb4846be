/* SPDX-License-Identifier: Apache-2.0 */
/* Holds a life byte in one of several ways, then does something that might lose or prolong it.
 *
 *   holder PATH SLOT HOW THEN
 *
 * Reports "ready [PID OF CHILD]" once the deed is done, then stays until it is killed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lock.h"

struct way {
  const char* name;
  int keep_descriptor;
  int map;
  int protection, flags;
  int inherit;
};

static const struct way ways[] = {
    {"mapping", 0, 1, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, 0}, /* the arena's own way */
    {"mapping-inherited", 0, 1, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, 1},
    {"mapping-readable", 0, 1, PROT_READ, MAP_PRIVATE, 0},
    {"descriptor", 1, 0, 0, 0, 0},
    {"nothing", 0, 0, 0, 0, 0},
};

static char *self, *object;

static void take(const char* name, int slot) {
  const struct way* way = NULL;
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
    if (!strcmp(ways[i].name, name)) way = &ways[i];
  if (!way) fail("how", EINVAL);

  int fd = open_for_lock(object, O_RDWR | (way->keep_descriptor ? 0 : O_CLOEXEC));
  if (fd < 0) fail("open", -fd);
  int error = lock_byte(fd, F_WRLCK, LIFE_BYTE(slot));
  if (error) fail("lock", error);
  if (way->map && !anchor(fd, way->protection, way->flags, way->inherit)) fail("map", errno);
  if (!way->keep_descriptor) close(fd);
}

static void then_stay(void) {
  report("ready");
  stay();
}

static void then_close_range(void) {
  syscall(SYS_close_range, 3u, ~0u, 0u);
  then_stay();
}

static void report_child(long child) {
  if (child < 0) fail("child", errno);
  report("ready %ld", child);
  stay();
}

static void then_fork(void) {
  pid_t child = fork();
  if (!child) stay();
  report_child(child);
}

static void then_clone(void) { /* as fork, unseen by atfork handlers */
  long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (!child) stay();
  report_child(child);
}

static int child_of_shared_memory(void* unused) {
  (void)unused;
  stay();
}

static void then_share(void) { /* a child in the same address space could still write to it */
  static char stack[65536] __attribute__((aligned(16)));
  report_child(clone(child_of_shared_memory, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
}

static void then_vfork(void) {
  pid_t child = vfork();
  if (!child) {
    execl(self, self, object, "0", "pause", "silent", (char*)NULL);
    _exit(1);
  }
  report_child(child);
}

static void then_exec(void) {
  report("ready");
  raise(SIGSTOP); /* the test looks, then lets it go on */
  execl(self, self, object, "0", "pause", "stay", (char*)NULL);
  fail("exec", errno);
}

static void then_stop(void) {
  report("ready");
  raise(SIGSTOP);
  stay();
}

static void* other_thread(void* main_thread) {
  pthread_join(*(pthread_t*)main_thread, NULL);
  then_stay();
  return NULL;
}

static void then_end_main_thread(void) { /* the process lives on in its other thread */
  static pthread_t main_thread;
  pthread_t thread;
  main_thread = pthread_self();
  if (pthread_create(&thread, NULL, other_thread, &main_thread)) fail("thread", errno);
  pthread_exit(NULL);
}

static const struct deed {
  const char* name;
  void (*run)(void);
} deeds[] = {
    {"stay", then_stay},   {"close_range", then_close_range},
    {"fork", then_fork},   {"clone", then_clone},
    {"share", then_share}, {"vfork", then_vfork},
    {"exec", then_exec},   {"end_main_thread", then_end_main_thread},
    {"stop", then_stop},   {"silent", stay},
};

int main(int count, char** args) {
  if (count != 5) fail("usage", EINVAL);
  self = args[0];
  object = args[1];
  alarm(LIMIT_S);
  if (strcmp(args[3], "pause")) take(args[3], atoi(args[2]));
  for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++)
    if (!strcmp(deeds[i].name, args[4])) deeds[i].run();
  fail("then", EINVAL);
}
