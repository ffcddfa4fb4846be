/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls that the kernel refuses from now on, by a seccomp filter: what a container's profile does.
 * A library that makes its own system calls (a static liburing) is out of LD_PRELOAD's reach. */
#ifndef KVSHM_TEST_REFUSAL_H
#define KVSHM_TEST_REFUSAL_H

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct refusal {
  long call;     /* SYS_... */
  int argument;  /* which one has `bits`; -1 = the call is refused whatever its arguments */
  uint32_t bits; /* refused with any of them set */
  int error;     /* EPERM, ...; 0 = whoever has the listener decides, call by call */
};

#if defined(__x86_64__)
enum { REFUSAL_ARCH = (int)0xc000003e };
#elif defined(__aarch64__)
enum { REFUSAL_ARCH = (int)0xc00000b7 };
#else
enum { REFUSAL_ARCH = 0 };
#endif
enum { REFUSAL_MOST = 24 };

#ifndef O_DIRECT /* hidden from strict C */
#define REFUSAL_DIRECT __O_DIRECT
#else
#define REFUSAL_DIRECT O_DIRECT
#endif

/* For this thread and what it starts; with SECCOMP_FILTER_FLAG_TSYNC for all threads. 0 or a
 * descriptor (SECCOMP_FILTER_FLAG_NEW_LISTENER), or -errno. */
static inline int refuse_calls(const struct refusal* what, unsigned n, unsigned flags) {
  struct sock_filter code[4 + 5 * REFUSAL_MOST + 1];
  unsigned at = 0, i;
  if (n > REFUSAL_MOST) return -EINVAL;
#define REFUSAL_OP(op, value, yes, no) \
  (code[at++] = (struct sock_filter)BPF_JUMP((op), (uint32_t)(value), yes, no))
#define REFUSAL_LOAD(field) \
  REFUSAL_OP(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field), 0, 0)
  REFUSAL_LOAD(arch);
  REFUSAL_OP(BPF_JMP | BPF_JEQ | BPF_K, REFUSAL_ARCH, 1, 0);
  REFUSAL_OP(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  for (i = 0; i < n; i++) {
    const int any = what[i].argument < 0;
    REFUSAL_LOAD(nr);
    REFUSAL_OP(BPF_JMP | BPF_JEQ | BPF_K, what[i].call, 0, (unsigned char)(any ? 1 : 3));
    if (!any) {
      REFUSAL_OP(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(struct seccomp_data, args) + 8 * (unsigned)what[i].argument, 0, 0);
      REFUSAL_OP(BPF_JMP | BPF_JSET | BPF_K, what[i].bits, 0, 1);
    }
    REFUSAL_OP(BPF_RET | BPF_K,
               what[i].error ? SECCOMP_RET_ERRNO | (uint32_t)what[i].error : SECCOMP_RET_USER_NOTIF,
               0, 0);
  }
  REFUSAL_OP(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
#undef REFUSAL_LOAD
#undef REFUSAL_OP
  {
    struct sock_fprog program = {(unsigned short)at, code};
    long rc;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -errno;
    rc = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
    if (rc < 0) return -errno;
    return rc > 0 && !(flags & SECCOMP_FILTER_FLAG_NEW_LISTENER) ? -ESRCH : (int)rc;
  }
}

#endif
