/* SPDX-License-Identifier: Apache-2.0
 *
 * A libcuda.so.1 without a GPU: the few functions that kvshm loads, over the mock. It insists on a
 * current context as the real one does. The environment says what it is like: KVSHM_FAKE_CUDA_DEVICES how
 * many devices there are, _WRONG and _WRONG_PAGED that copies go wrong, _LATE_MS that they outlive
 * their process. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mock_pin.h"
#include "work.h"
#define KVSHM_ON_HOST
#include "rows.cu"

typedef int result;
enum { NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };

static struct {
  int retained, live;
} primary[8];
static int own_context; /* its address: a context that the application has made itself */
static int initialized, devices;
static _Thread_local void* stack[16];
static _Thread_local int depth;

static int device_of(void* context) {
  for (int i = 0; i < devices; i++)
    if (context == &primary[i]) return i;
  return context == &own_context ? 0 : -1;
}

static int usable(void* context) {
  int device = device_of(context);
  if (device < 0) return 0;
  return context == &own_context ? !mock_set()->gone : primary[device].live;
}

result cuInit(unsigned flags) {
  const char* n = getenv("KVSHM_FAKE_CUDA_DEVICES");
  devices = n ? atoi(n) : 1;
  if (flags || devices == 0) return NO_DEVICE;
  initialized = 1;
  return 0;
}

result cuCtxGetCurrent(void** out) {
  *out = depth ? stack[depth - 1] : 0;
  return initialized ? 0 : NOT_INITIALIZED;
}

result cuCtxGetDevice(int* out) {
  if (!depth) return INVALID_CONTEXT;
  *out = device_of(stack[depth - 1]);
  return 0;
}

result cuCtxPushCurrent_v2(void* context) {
  if (!usable(context) || depth == 16) return INVALID_CONTEXT;
  stack[depth++] = context;
  return 0;
}

result cuCtxPopCurrent_v2(void** out) {
  if (!depth) return INVALID_CONTEXT;
  *out = stack[--depth];
  return 0;
}

result cuDeviceGet(int* out, int ordinal) {
  if (ordinal < 0 || ordinal >= devices) return INVALID_DEVICE;
  *out = ordinal;
  return 0;
}

result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = primary[device].live;
  return 0;
}

result cuDevicePrimaryCtxRetain(void** out, int device) {
  primary[device].retained++;
  primary[device].live = 1;
  *out = &primary[device];
  return 0;
}

result cuDevicePrimaryCtxRelease_v2(int device) {
  if (!primary[device].retained) return INVALID_CONTEXT;
  if (--primary[device].retained == 0) primary[device].live = 0;
  return 0;
}

/* The driver's number for what the mock said. */
static result number(int rc) {
  return rc == KVSHM_DEVICE_ALREADY ? 712
         : rc == KVSHM_DEVICE_GONE  ? 4
         : rc == MOCK_NO_MEMORY     ? 2
         : rc < 0                   ? -rc
                                    : 0;
}

result cuMemHostRegister_v2(void* p, size_t bytes, unsigned flags) {
  if (!depth || !usable(stack[depth - 1])) return INVALID_CONTEXT;
  if (flags != 3) return 1; /* portable, mapped */
  int rc = mock_register(0, p, bytes);
  mock_clear_error(0); /* a driver keeps none */
  return number(rc);
}

result cuMemHostUnregister(void* p) {
  if (!depth || !usable(stack[depth - 1])) return INVALID_CONTEXT;
  int rc = mock_unregister(0, p);
  mock_clear_error(0);
  return number(rc);
}

result cuPointerGetAttribute(void* out, int attribute, uint64_t p) {
  if (!depth) return INVALID_CONTEXT;
  if (attribute != 2 || mock_covers(0, (void*)(uintptr_t)p, 1) != 1) return 1;
  *(unsigned*)out = 1; /* host memory; its range is not told: the library goes by pages */
  return 0;
}

result cuGetErrorString(result code, const char** out) {
  *out = code == 2     ? "out of memory"
         : code == 100 ? "no CUDA-capable device is detected"
         : code == 101 ? "invalid device ordinal"
                       : 0;
  return *out ? 0 : 1;
}

/* For tests. */
int fake_primary_references(int device) { return primary[device].retained; }
void fake_reset_primary(int device) { primary[device].live = 0; }
void* fake_own_context(void) { return &own_context; }

/* Memory of the device: the host's. Copies are done when they are asked for. */
result cuDriverGetVersion(int* out) {
  *out = 1; /* no real driver says so */
  return 0;
}

result cuDeviceGetName(char* out, int n, int device) {
  (void)device;
  snprintf(out, (size_t)n, "fake");
  return 0;
}

result cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  void* p = malloc(bytes);
  *out = (uint64_t)(uintptr_t)p;
  return p ? 0 : 2;
}

result cuMemFree_v2(uint64_t at) {
  free((void*)(uintptr_t)at);
  return 0;
}

result cuMemsetD8_v2(uint64_t at, unsigned char value, size_t bytes) {
  memset((void*)(uintptr_t)at, value, bytes);
  return 0;
}

result cuStreamCreate(void** out, unsigned flags) {
  (void)flags;
  *out = &own_context;
  return 0;
}

result cuStreamDestroy_v2(void* stream) { return stream == &own_context ? 0 : 400; }

result cuStreamSynchronize(void* stream) {
  (void)stream;
  return 0;
}

/* A device that outlives its process: writes into the object behind `host` for so long. */
static void write_late(void* host, long ms) {
  static int once;
  char line[512], path[256] = "";
  unsigned long long from, to, offset, where = 0;
  FILE* maps = once++ ? 0 : fopen("/proc/self/maps", "re");
  if (!maps) return;
  while (fgets(line, sizeof line, maps))
    if (sscanf(line, "%llx-%llx %*s %llx %*s %*s %255s", &from, &to, &offset, path) == 4 &&
        from <= (uintptr_t)host && (uintptr_t)host < to) {
      where = offset + ((uintptr_t)host - from);
      break;
    }
  fclose(maps);
  if (fork()) return;
  int fd = open(path, O_RDWR);
  for (; fd >= 0 && ms > 0; ms -= 20) {
    (void)!pwrite(fd, &ms, sizeof ms, (off_t)where);
    usleep(20000);
  }
  _exit(0);
}

result cuMemcpyDtoHAsync_v2(void* host, uint64_t at, size_t bytes, void* stream) {
  const char* late = getenv("KVSHM_FAKE_CUDA_LATE_MS");
  (void)stream;
  memcpy(host, (void*)(uintptr_t)at, bytes);
  if (getenv("KVSHM_FAKE_CUDA_WRONG")) *(char*)host ^= 1;
  if (late) write_late(host, atol(late));
  return 0;
}

/* Streams of one context; copies wait in them while a test holds them, until it runs the stream. */
static char streams[8];
static struct {
  int on;
  size_t n;
  struct {
    uint64_t to, from;
    size_t bytes;
    void* stream;
  } copy[4096];
} held;

/* What copies of paged KV were asked for, in order; the one of this number fails (0: none). */
static struct {
  size_t copies, batches, fail_at;
  uint64_t to[4096];
} paged;
void fake_copies_reset(size_t fail_at) {
  memset(&paged, 0, sizeof paged);
  paged.fail_at = fail_at;
  held.n = 0;
}
size_t fake_copies(size_t* batches, uint64_t** to) {
  *batches = paged.batches;
  *to = paged.to;
  return paged.copies;
}

/* Launches of the kernel wait as copies do. The one of `fail_at` (counted from 1) is refused. */
static struct {
  size_t n, fail_at, held;
  struct {
    kvshm_work work;
    kvshm_u32 blocks, threads;
    void* stream;
  } launch[16];
} kernel;
void fake_launches_reset(size_t fail_at) { memset(&kernel, 0, sizeof kernel), kernel.fail_at = fail_at; }
size_t fake_launches(void) { return kernel.n; }

/* As a device does it, one thread after the other. */
static void run_kernel(const kvshm_work* w, kvshm_u32 blocks, kvshm_u32 threads) {
  for (kvshm_u32 row = 0; row < w->rows; row++)
    for (kvshm_u32 block = 0; block < blocks; block++)
      for (kvshm_u32 thread = 0; thread < threads; thread++)
        kvshm_copy_rows(w, block, blocks, row, thread, threads);
}

result cuDeviceGetAttribute(int* out, int attribute, int device) {
  if (device < 0 || device >= devices) return INVALID_DEVICE;
  *out = attribute == 75 ? 9 : attribute == 91;
  return attribute == 75 || attribute == 76 || attribute == 91 ? 0 : 1;
}

result cuModuleLoadData(void** module, const void* image) {
  if (!depth || !usable(stack[depth - 1])) return INVALID_CONTEXT;
  if (strcmp(image, "fake PTX of kvshm_rows")) return 218; /* invalid PTX */
  *module = &kernel;
  return 0;
}

result cuModuleGetFunction(void** out, void* module, const char* name) {
  if (module != &kernel || strcmp(name, "kvshm_rows")) return 500; /* not found */
  *out = &kernel.launch;
  return 0;
}

/* Insists on what would end a real context: every slice must be registered. */
result cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, void* stream, void** arguments, void** extra) {
  const kvshm_work* w = arguments[0];
  if (!depth) return INVALID_CONTEXT;
  if (++kernel.n == kernel.fail_at || function != &kernel.launch || extra || shared) return 400;
  if (!gx || gy != w->rows || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1) return 1;
  for (kvshm_u32 i = 0; i < w->rows; i++)
    if (mock_covers(0, (void*)(uintptr_t)w->slice[i], 1) != 1) return 700;
  if (!held.on) {
    run_kernel(w, gx, bx);
    if (getenv("KVSHM_FAKE_CUDA_WRONG_PAGED") && w->into_blocks) *(char*)(uintptr_t)w->slice[0] ^= 1;
    return 0;
  }
  if (kernel.held == 16) return 2;
  kernel.launch[kernel.held].work = *w;
  kernel.launch[kernel.held].blocks = gx;
  kernel.launch[kernel.held].threads = bx;
  kernel.launch[kernel.held++].stream = stream;
  return 0;
}

static size_t run_launches(void* stream) {
  size_t left = 0, n = kernel.held;
  for (size_t i = 0; i < n; i++)
    if (kernel.launch[i].stream == stream)
      run_kernel(&kernel.launch[i].work, kernel.launch[i].blocks, kernel.launch[i].threads);
    else
      kernel.launch[left++] = kernel.launch[i];
  kernel.held = left;
  return n - left;
}

void* fake_stream(int number) { return &streams[number]; }
void fake_hold(int on) { held.on = on; }
size_t fake_run(void* stream) {
  size_t left = 0, n = held.n;
  for (size_t i = 0; i < n; i++)
    if (held.copy[i].stream == stream)
      memcpy((void*)(uintptr_t)held.copy[i].to, (const void*)(uintptr_t)held.copy[i].from,
             held.copy[i].bytes);
    else
      held.copy[left++] = held.copy[i];
  held.n = left;
  return n - left + run_launches(stream);
}

result cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (!depth) return INVALID_CONTEXT;
  const size_t copy = __atomic_fetch_add(&paged.copies, 1, __ATOMIC_RELAXED);  // by any thread
  if (copy < 4096) paged.to[copy] = to;
  if (copy + 1 == paged.fail_at) return 1;
  if (held.on) {
    if (held.n == 4096) return 2;
    held.copy[held.n].to = to;
    held.copy[held.n].from = from;
    held.copy[held.n].bytes = bytes;
    held.copy[held.n++].stream = stream;
    return 0;
  }
  memcpy((void*)(uintptr_t)to, (const void*)(uintptr_t)from, bytes);
  if (getenv("KVSHM_FAKE_CUDA_WRONG_PAGED")) *(char*)(uintptr_t)to ^= 1;
  return 0;
}

/* As of CUDA 12.8: refuses the default stream, and attributes other than "in stream order". */
result cuMemcpyBatchAsync(uint64_t* to, uint64_t* from, size_t* bytes, size_t n, int* order,
                          size_t* first, size_t attributes, size_t* failed, void* stream) {
  if (!stream || attributes != 1 || *first || *order != 1) return 1;
  paged.batches++;
  for (size_t i = 0; i < n; i++)
    if (cuMemcpyAsync(to[i], from[i], bytes[i], stream)) {
      *failed = i;
      return 1;
    }
  return 0;
}

result cuStreamGetCtx(void* stream, void** out) {
  const int ours = (char*)stream >= streams && (char*)stream < streams + sizeof streams;
  *out = ours ? &own_context : stream; /* cuStreamCreate's is the application's context */
  return usable(*out) ? 0 : INVALID_CONTEXT;
}

result cuMemcpyHtoDAsync_v2(uint64_t at, const void* host, size_t bytes, void* stream) {
  (void)stream;
  memcpy((void*)(uintptr_t)at, host, bytes);
  return 0;
}
