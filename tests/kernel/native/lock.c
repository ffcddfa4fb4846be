/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

int lock_byte(int fd, int type, long long byte) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  return fcntl(fd, F_OFD_SETLK, &lock) ? errno : 0;
}

int byte_is_held(int fd, long long byte) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
  if (fcntl(fd, F_OFD_GETLK, &lock)) return -errno;
  return lock.l_type != F_UNLCK;
}

int open_for_lock(const char* path, int flags) {
  int fd = open(path, flags);
  return fd < 0 ? -errno : fd;
}

void* anchor(int fd, int protection, int flags, int inherit) {
  struct statfs fs; /* on hugetlbfs a mapping is a whole huge page */
  if (fstatfs(fd, &fs)) return NULL;
  size_t page = (size_t)fs.f_bsize;
  void* at = mmap(NULL, page, protection, flags, fd, 0);
  if (at == MAP_FAILED) return NULL;
  if (!inherit && madvise(at, page, MADV_DONTFORK)) return NULL;
  return at;
}

void report(const char* format, ...) {
  va_list list;
  va_start(list, format);
  vprintf(format, list);
  va_end(list);
  putchar('\n');
  fflush(stdout);
}

void fail(const char* what, int error) {
  report("error %s %d", what, error);
  exit(1);
}

void stay(void) {
  alarm(LIMIT_S);
  for (;;) pause();
}
