/* SPDX-License-Identifier: Apache-2.0
 *
 * A libnvrtc without a compiler: its "PTX" is a word that fake_cuda.c knows. It insists on what the
 * real one needs. KVSHM_FAKE_NVRTC=broken: nothing compiles. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 1, INVALID_INPUT = 3, COMPILATION = 6 };
static const char ptx[] = "fake PTX of kvshm_rows", trouble[] = "rows.cu(1): error: broken";

int nvrtcCreateProgram(void** program, const char* source, const char* name, int headers,
                       const char* const* texts, const char* const* names) {
  if (!strstr(source, "extern \"C\" __global__ void") || !strstr(source, "kvshm_rows("))
    return INVALID_INPUT;
  if (!name || headers || texts || names) return INVALID_INPUT;
  *program = malloc(1);
  return *program ? 0 : OUT_OF_MEMORY;
}

int nvrtcCompileProgram(void* program, int n, const char* const* options) {
  const char* how = getenv("KVSHM_FAKE_NVRTC");
  if (!program || n != 1 || strcmp(options[0], "--gpu-architecture=compute_90")) return INVALID_INPUT;
  return how && !strcmp(how, "broken") ? COMPILATION : 0;
}

int nvrtcGetPTXSize(void* program, size_t* out) { return *out = sizeof ptx, program ? 0 : 4; }
int nvrtcGetPTX(void* program, char* out) { return memcpy(out, ptx, sizeof ptx), program ? 0 : 4; }
int nvrtcGetProgramLogSize(void* program, size_t* out) {
  return *out = sizeof trouble, program ? 0 : 4;
}
int nvrtcGetProgramLog(void* program, char* out) {
  return memcpy(out, trouble, sizeof trouble), program ? 0 : 4;
}
int nvrtcDestroyProgram(void** program) { return free(*program), *program = 0, 0; }
