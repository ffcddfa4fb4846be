/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcufile.so.0 without GPUDirect Storage: files and the fake driver's device memory, which is
 * the host's (fake_cuda.c). KVSHM_FAKE_CUFILE in the environment says what goes wrong, words with
 * commas between them:
 *
 *   open, handle, buffer   the driver, a file, a buffer is refused
 *   hang                   the driver does not come back from being opened
 *   compat                 it would copy by the host: nvidia-fs is not loaded
 *   read=N, write=N        the N-th read or write of the process fails, and all after it
 *   wrong=N                the N-th read brings a wrong byte
 *   short                  moves 4096 bytes a call at most */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  int err, cuda;
} error;
typedef struct {
  int type;
  union {
    int fd;
    void* other;
  } handle;
  const void* operations;
} descriptor;
typedef struct {
  unsigned major, minor;
  size_t poll_bytes, direct_bytes;
  unsigned file_systems, control, features;
} properties;

static struct {
  uintptr_t base;
  size_t bytes;
} buffers[16];
static int opened, handles, nbuffers;
static long reads, writes, misuses;

static int told(const char* word) { /* 0: not; else its number, or 1 */
  const char* all = getenv("KVSHM_FAKE_CUFILE");
  const size_t n = strlen(word);
  for (const char* p = all; p && (p = strstr(p, word)); p += n)
    if ((p == all || p[-1] == ',') && (!p[n] || p[n] == ',' || p[n] == '='))
      return p[n] == '=' ? atoi(p + n + 1) : 1;
  return 0;
}

static error give(int err) { return (error){err, 0}; }

error cuFileDriverOpen(void) {
  while (told("hang")) usleep(1000);
  if (told("open")) return give(5001);
  if (opened++) return give(5026);
  return give(0);
}

error cuFileDriverGetProperties(properties* out) {
  if (!opened) return give(5001);
  memset(out, 0, sizeof *out);
  out->major = told("compat") ? 0 : 2;
  out->minor = told("compat") ? 0 : 20;
  out->control = 2;
  return give(0);
}

error cuFileHandleRegister(void** out, descriptor* d) {
  if (!opened || d->type != 1) return give(5022);
  if (told("handle")) return give(5008);
  handles++;
  *out = (void*)(uintptr_t)(d->handle.fd + 1);
  return give(0);
}

void cuFileHandleDeregister(void* h) {
  if (!h || !handles--) misuses++;
}

error cuFileBufRegister(const void* p, size_t bytes, int flags) {
  if (told("buffer") || flags) return give(5036);
  for (int i = 0; i < nbuffers; i++)
    if (buffers[i].base == (uintptr_t)p) return give(5023);
  if (nbuffers == 16) return give(5043);
  buffers[nbuffers].base = (uintptr_t)p;
  buffers[nbuffers++].bytes = bytes;
  return give(0);
}

error cuFileBufDeregister(const void* p) {
  for (int i = 0; i < nbuffers; i++)
    if (buffers[i].base == (uintptr_t)p) {
      buffers[i] = buffers[--nbuffers];
      return give(0);
    }
  misuses++;
  return give(5024);
}

/* The offset counts from a buffer that is registered, and must be 0 for any other memory. */
static int apart(const void* base, size_t bytes, off_t offset) {
  for (int i = 0; i < nbuffers; i++)
    if (buffers[i].base == (uintptr_t)base)
      return (size_t)offset > buffers[i].bytes || bytes > buffers[i].bytes - (size_t)offset;
  return offset != 0 && !told("short");
}

/* As O_DIRECT wants neither: through the file's pages, whatever flags the descriptor has. */
static ssize_t move(int fd, char* p, size_t bytes, off_t at, int writing) {
  char room[4096] __attribute__((aligned(4096)));
  size_t n = 0;
  if (told("short") && bytes > 4096) bytes = 4096;
  while (n < bytes) {
    const off_t page = (at + (off_t)n) / 4096 * 4096;
    const size_t from = (size_t)(at + (off_t)n - page);
    const size_t some = bytes - n < sizeof room - from ? bytes - n : sizeof room - from;
    if (!writing || some < sizeof room) {
      const ssize_t got = pread(fd, room, sizeof room, page);
      if (got < 0) return -1;
      if (!writing && (size_t)got < from + some) return (ssize_t)n;
      if (writing && got < (ssize_t)sizeof room) memset(room + got, 0, sizeof room - (size_t)got);
    }
    if (writing) {
      memcpy(room + from, p + n, some);
      if (pwrite(fd, room, sizeof room, page) != (ssize_t)sizeof room) return -1;
    } else {
      memcpy(p + n, room + from, some);
    }
    n += some;
  }
  return (ssize_t)n;
}

ssize_t cuFileRead(void* h, void* base, size_t bytes, off_t file, off_t offset) {
  const long number = __atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED);
  if (!h || apart(base, bytes, offset)) return -5014;
  if (told("read") && number >= told("read")) {
    errno = EIO;
    return number % 2 ? -5044 : -1;
  }
  const ssize_t n = move((int)(uintptr_t)h - 1, (char*)base + offset, bytes, file, 0);
  if (n > 0 && told("wrong") == number) ((char*)base + offset)[n / 2] ^= 1;
  return n;
}

ssize_t cuFileWrite(void* h, const void* base, size_t bytes, off_t file, off_t offset) {
  const long number = __atomic_add_fetch(&writes, 1, __ATOMIC_RELAXED);
  if (!h || apart(base, bytes, offset)) return -5014;
  if (told("write") && number >= told("write")) return -5010;
  return move((int)(uintptr_t)h - 1, (char*)base + offset, bytes, file, 1);
}

/* For tests: calls so far, and what is left registered. */
void fake_cufile_seen(long out[5]) {
  out[0] = reads, out[1] = writes, out[2] = handles, out[3] = nbuffers, out[4] = misuses;
}
