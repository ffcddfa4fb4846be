/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded before libkvshm: ends the process with SIGKILL right before or after the n-th call of
 * one libc function, so that a shipped library can be stopped between any two of its steps.
 *
 *   KVSHM_KILL="ftruncate:1:after"      armed from then on that KVSHM_ARM exists as a file
 *
 * With KVSHM_COUNT=PATH it kills nobody and writes the calls it saw, one a line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

int kvshm_killer_armed; /* set by the test's process through ctypes */
static int seen[32];

static const char *const names[] = {"open",      "fchmod", "ftruncate", "mmap",     "madvise",
                                    "fallocate", "fcntl",  "getrandom", "syscall",  "unlink",
                                    "munmap",    "fstat",  "fchown",    "statvfs"};

static int index_of(const char *name) {
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i], name) == 0) return (int)i;
  abort();
}

static void at(const char *name, const char *when) {
  if (!kvshm_killer_armed) return;
  const char *spec = getenv("KVSHM_KILL");
  const char *count = getenv("KVSHM_COUNT");
  int n = strcmp(when, "before") == 0 ? ++seen[index_of(name)] : seen[index_of(name)];
  char here[64];
  snprintf(here, sizeof here, "%s:%d:%s", name, n, when);
  if (spec && strcmp(spec, here) == 0) kill(getpid(), SIGKILL);
  if (count) {
    kvshm_killer_armed = 0;
    FILE *f = fopen(count, "a");
    if (f) {
      fprintf(f, "%s\n", here);
      fclose(f);
    }
    kvshm_killer_armed = 1;
  }
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define WRAP(type, name, parameters, arguments) \
  type name parameters { \
    REAL(name); \
    at(#name, "before"); \
    type result = real arguments; \
    at(#name, "after"); \
    return result; \
  }

WRAP(int, fchmod, (int fd, mode_t mode), (fd, mode))
WRAP(int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t off),
     (p, n, prot, flags, fd, off))
WRAP(int, madvise, (void *p, size_t n, int advice), (p, n, advice))
WRAP(int, fallocate, (int fd, int mode, off_t off, off_t n), (fd, mode, off, n))
WRAP(ssize_t, getrandom, (void *p, size_t n, unsigned flags), (p, n, flags))
WRAP(int, unlink, (const char *path), (path))

int open(const char *path, int flags, ...) {
  REAL(open);
  va_list args;
  va_start(args, flags);
  mode_t mode = va_arg(args, mode_t);
  va_end(args);
  at("open", "before");
  int fd = real(path, flags, mode);
  at("open", "after");
  return fd;
}

int fcntl(int fd, int command, ...) {
  REAL(fcntl);
  va_list args;
  va_start(args, command);
  void *argument = va_arg(args, void *);
  va_end(args);
  at("fcntl", "before");
  int result = real(fd, command, argument);
  at("fcntl", "after");
  return result;
}

long syscall(long number, ...) {
  REAL(syscall);
  va_list args;
  va_start(args, number);
  long v[6];
  for (int i = 0; i < 6; i++) v[i] = va_arg(args, long);
  va_end(args);
  at("syscall", "before");
  long result = real(number, v[0], v[1], v[2], v[3], v[4], v[5]);
  at("syscall", "after");
  return result;
}
