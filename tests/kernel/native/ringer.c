/* SPDX-License-Identifier: Apache-2.0 */
/* An arena process with one io_uring: life byte, device byte, reads from a file into the arena.
 *
 *   ringer ARENA FILE SLOT COUNT registered|unregistered dontfork|mapped stay|clone|exit
 *
 * Reports "ready SUBMITTED [PID OF CHILD]"; with exit it waits for every read, ends the ring and
 * reports "closed". Each read is 1 MiB, O_DIRECT, the i-th to the i-th MiB of the arena. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lock.h"

enum { READ_BYTES = 1 << 20 };

static void hold_life(const char* path, int slot) {
  int fd = open_for_lock(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("open", -fd);
  int error = lock_byte(fd, F_WRLCK, LIFE_BYTE(slot));
  if (error) fail("lock", error);
  if (!anchor(fd, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, 0)) fail("map", errno);
  close(fd);
}

static char* map_arena(const char* path, size_t size) {
  int fd = open_for_lock(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) fail("open", -fd);
  char* at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED || madvise(at, size, MADV_DONTFORK)) fail("map", errno);
  close(fd);
  return at;
}

static void start_ring(struct io_uring* ring, int dontfork) {
  struct io_uring_params params = {.flags =
                                       IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
  int rc = io_uring_queue_init_params(256, ring, &params);
  if (rc == -EINVAL) {
    memset(&params, 0, sizeof params);
    rc = io_uring_queue_init_params(256, ring, &params);
  }
  if (rc) fail("setup", -rc);
  if (dontfork && (rc = io_uring_ring_dontfork(ring))) fail("dontfork", -rc);
}

/* The device byte's description. Registered, only the ring holds it; else only a descriptor. */
static void hold_device(struct io_uring* ring, const char* path, int slot, int registered) {
  int fd = open_for_lock(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("open", -fd);
  int error = lock_byte(fd, F_RDLCK, DEVICE_BYTE(slot));
  if (error) fail("lock", error);
  if (!registered) return;
  int rc = io_uring_register_files(ring, &fd, 1);
  if (rc) fail("register", -rc);
  close(fd);
}

static int submit_reads(struct io_uring* ring, const char* path, char* arena, int count) {
  int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) fail("direct", errno);
  for (int i = 0; i < count; i++) {
    struct io_uring_sqe* sqe = io_uring_get_sqe(ring);
    size_t at = (size_t)i * READ_BYTES;
    io_uring_prep_read(sqe, fd, arena + at, READ_BYTES, at);
  }
  return io_uring_submit(ring);
}

static void finish(struct io_uring* ring, int count) {
  for (int i = 0; i < count; i++) {
    struct io_uring_cqe* cqe;
    int rc = io_uring_wait_cqe(ring, &cqe);
    if (rc || cqe->res != READ_BYTES) fail("read", rc ? -rc : -cqe->res);
    io_uring_cqe_seen(ring, cqe);
  }
  io_uring_queue_exit(ring);
  report("closed");
  stay();
}

int main(int count, char** args) {
  if (count != 8) fail("usage", EINVAL);
  const char *arena_path = args[1], *then = args[7];
  int slot = atoi(args[3]), reads = atoi(args[4]);
  int registered = !strcmp(args[5], "registered"), dontfork = !strcmp(args[6], "dontfork");
  alarm(LIMIT_S);

  struct io_uring ring;
  hold_life(arena_path, slot);
  char* arena = map_arena(arena_path, (size_t)reads * READ_BYTES);
  start_ring(&ring, dontfork);
  hold_device(&ring, arena_path, slot, registered);
  int submitted = submit_reads(&ring, args[2], arena, reads);

  if (!strcmp(then, "exit")) {
    report("ready %d", submitted);
    finish(&ring, reads);
  }
  if (!strcmp(then, "clone")) {
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) { /* only what it inherited as memory is left to it */
      syscall(SYS_close_range, 0u, ~0u, 0u);
      stay();
    }
    report("ready %d %ld", submitted, child);
  } else {
    report("ready %d", submitted);
  }
  stay();
}
