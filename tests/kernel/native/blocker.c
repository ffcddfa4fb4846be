/* SPDX-License-Identifier: Apache-2.0 */
/* An arena process that reads without io_uring: by blocking threads, or by native AIO.
 *
 *   blocker ARENA FILE SLOT COUNT threads|aio
 *
 * Reports "ready" when all reads have been started. Same reads as ringer's. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lock.h"

enum { READ_BYTES = 1 << 20, MOST = 256 };

static char* arena;
static int file;
static pthread_barrier_t started;

static void* read_one(void* index) {
  size_t at = (size_t)index * READ_BYTES;
  pthread_barrier_wait(&started);
  if (pread(file, arena + at, READ_BYTES, (off_t)at) != READ_BYTES) fail("pread", errno);
  stay();
  return NULL;
}

static void read_by_threads(int count) {
  pthread_barrier_init(&started, NULL, (unsigned)count + 1);
  for (int i = 0; i < count; i++) {
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, read_one, (void*)(size_t)i);
    if (rc) fail("thread", rc);
  }
  pthread_barrier_wait(&started);
  usleep(3000); /* let them reach the disk */
}

static void read_by_aio(int count) {
  static struct iocb blocks[MOST];
  static struct iocb* list[MOST];
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, count, &context)) fail("io_setup", errno);
  for (int i = 0; i < count; i++) {
    size_t at = (size_t)i * READ_BYTES;
    blocks[i].aio_lio_opcode = IOCB_CMD_PREAD;
    blocks[i].aio_fildes = (unsigned)file;
    blocks[i].aio_buf = (size_t)(arena + at);
    blocks[i].aio_nbytes = READ_BYTES;
    blocks[i].aio_offset = (long long)at;
    list[i] = &blocks[i];
  }
  if (syscall(SYS_io_submit, context, count, list) != count) fail("io_submit", errno);
}

int main(int count, char** args) {
  if (count != 6) fail("usage", EINVAL);
  int slot = atoi(args[3]), reads = atoi(args[4]);
  if (reads > MOST) fail("count", EINVAL);
  alarm(LIMIT_S);

  int fd = open_for_lock(args[1], O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("open", -fd);
  int error = lock_byte(fd, F_WRLCK, LIFE_BYTE(slot));
  if (error) fail("lock", error);
  if (!anchor(fd, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, 0)) fail("map", errno);
  arena = mmap(NULL, (size_t)reads * READ_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (arena == MAP_FAILED) fail("map", errno);
  close(fd);
  file = open(args[2], O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file < 0) fail("direct", errno);

  if (!strcmp(args[5], "aio"))
    read_by_aio(reads);
  else
    read_by_threads(reads);
  report("ready");
  stay();
}
