# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Posts: work that one process of an arena does for all, held by a lock of the kernel."""
from libc.errno cimport EAGAIN
from libc.stdint cimport uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_POST_CONTROLLER, KVSHM_POST_EVICTOR, KVSHM_POST_MOVER,
                           kvshm_elect, kvshm_resign)
from kvshm.convert cimport fail

from kvshm.errors import InvalidArgument

cdef dict _POSTS = {"mover": KVSHM_POST_MOVER, "evictor": KVSHM_POST_EVICTOR,
                    "controller": KVSHM_POST_CONTROLLER}


cdef uint32_t _number(object post) except *:
    if post not in _POSTS:
        raise InvalidArgument(f"post: expected one of {sorted(_POSTS)}, got {post!r}")
    return _POSTS[post]


def elect(Attachment arena not None, post):
    """Whether this attachment has the post, now or since earlier; False while another one has it.

    post: "evictor", "controller" or "mover". Never waits: ask again a few times a second. The
    kernel vacates the post when the process ends, however that comes; close() does, too. A forked
    child does not have what its parent has. Raises ArenaReplaced. Any thread.
    """
    cdef uint32_t number = _number(post)
    cdef int rc
    arena.alive()
    with nogil:
        rc = kvshm_elect(arena.ptr, number)
    if rc == -EAGAIN:
        return False
    if rc < 0:
        fail(rc, f"elect: {post}")
    return True


def resign(Attachment arena not None, post):
    """Let the post go, if this attachment has it."""
    cdef uint32_t number = _number(post)
    cdef int rc
    arena.alive()
    with nogil:
        rc = kvshm_resign(arena.ptr, number)
    if rc < 0:
        fail(rc, f"resign: {post}")
