# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of kvshm._uring, the cffi binding of liburing.

API mode, because most of liburing is static inline: only a compiler can reach it.
Run by CMake as ``python _uring_build.py OUT.c``; the result links the static liburing.a.
"""

import sys

from cffi import FFI

CDEF = """
#define IORING_SETUP_CLAMP ...
#define IORING_SETUP_SINGLE_ISSUER ...
#define IORING_SETUP_DEFER_TASKRUN ...
#define IORING_FEAT_SINGLE_MMAP ...
#define IORING_FEAT_NODROP ...
#define IORING_FEAT_SUBMIT_STABLE ...
#define IORING_FEAT_RW_CUR_POS ...
#define IORING_FEAT_CUR_PERSONALITY ...
#define IORING_FEAT_FAST_POLL ...
#define IORING_FEAT_POLL_32BITS ...
#define IORING_FEAT_SQPOLL_NONFIXED ...
#define IORING_FEAT_EXT_ARG ...
#define IORING_FEAT_NATIVE_WORKERS ...
#define IORING_FEAT_RSRC_TAGS ...
#define IORING_FEAT_CQE_SKIP ...
#define IORING_FEAT_LINKED_FILE ...

enum io_uring_op {
    IORING_OP_NOP, IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_FSYNC,
    IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_TIMEOUT,
    IORING_OP_ASYNC_CANCEL, IORING_OP_FALLOCATE, IORING_OP_READ, IORING_OP_WRITE,
    IORING_OP_FADVISE, IORING_OP_SEND, IORING_OP_RECV, IORING_OP_SPLICE,
    IORING_OP_MSG_RING, IORING_OP_SOCKET, IORING_OP_URING_CMD, IORING_OP_SEND_ZC, ...
};

struct io_uring { int ring_fd; ...; };
struct io_uring_sqe { ...; };
struct io_uring_cqe { int32_t res; uint32_t flags; ...; };
struct io_uring_params {
    uint32_t sq_entries; uint32_t cq_entries; uint32_t flags; uint32_t features; ...;
};
struct io_uring_probe_op { uint8_t op; uint16_t flags; ...; };
struct io_uring_probe { uint8_t last_op; uint8_t ops_len; ...; };
struct iovec { void *iov_base; size_t iov_len; };
struct __kernel_timespec { int64_t tv_sec; long long tv_nsec; };

int io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                               struct io_uring_params *p);
void io_uring_queue_exit(struct io_uring *ring);
int io_uring_ring_dontfork(struct io_uring *ring);

struct io_uring_probe *io_uring_get_probe_ring(struct io_uring *ring);
void io_uring_free_probe(struct io_uring_probe *probe);
int io_uring_opcode_supported(const struct io_uring_probe *p, int op);

int io_uring_register_buffers(struct io_uring *ring, const struct iovec *iovecs, unsigned nr);
int io_uring_unregister_buffers(struct io_uring *ring);
int io_uring_register_files(struct io_uring *ring, const int *files, unsigned nr);
int io_uring_unregister_files(struct io_uring *ring);

struct io_uring_sqe *io_uring_get_sqe(struct io_uring *ring);
void io_uring_prep_nop(struct io_uring_sqe *sqe);
void io_uring_prep_read(struct io_uring_sqe *sqe, int fd, void *buf, unsigned nbytes,
                        uint64_t offset);
void io_uring_prep_read_fixed(struct io_uring_sqe *sqe, int fd, void *buf, unsigned nbytes,
                              uint64_t offset, int buf_index);
void io_uring_prep_write(struct io_uring_sqe *sqe, int fd, const void *buf, unsigned nbytes,
                         uint64_t offset);
void io_uring_sqe_set_data64(struct io_uring_sqe *sqe, uint64_t data);
uint64_t io_uring_cqe_get_data64(const struct io_uring_cqe *cqe);

int io_uring_submit(struct io_uring *ring);
int io_uring_wait_cqe_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                              struct __kernel_timespec *ts);
void io_uring_cqe_seen(struct io_uring *ring, struct io_uring_cqe *cqe);
"""

ffibuilder = FFI()
ffibuilder.cdef(CDEF)
ffibuilder.set_source("kvshm._uring", "#include <sys/uio.h>\n#include <liburing.h>\n")

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python _uring_build.py OUT.c")
    ffibuilder.emit_c_code(sys.argv[1])
