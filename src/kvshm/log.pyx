# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The library's messages, for a function of yours. Without one they go nowhere."""
import atexit
import logging

from cpython.exc cimport PyErr_SetInterrupt

from kvshm.ckvshm cimport (KVSHM_LOG_DEBUG, KVSHM_LOG_ERROR, KVSHM_LOG_INFO, KVSHM_LOG_WARN,
                           kvshm_log_fn, kvshm_set_log)

_LEVELS = {KVSHM_LOG_DEBUG: logging.DEBUG, KVSHM_LOG_INFO: logging.INFO,
           KVSHM_LOG_WARN: logging.WARNING, KVSHM_LOG_ERROR: logging.ERROR}
cdef object _function = None


cdef void _pass_on(int level, const char *message, void *user) noexcept with gil:
    if _function is not None:
        try:
            _function(_LEVELS.get(level, logging.ERROR), message.decode("utf-8", "replace"))
        except KeyboardInterrupt:  # a signal that came meanwhile is for who called the library
            PyErr_SetInterrupt()
        except BaseException:  # from a thread of the library: nobody could catch it
            logging.getLogger("kvshm").exception("the log function failed")


def set_log(function):
    """Call function(level, text) for each message, with the levels of `logging`; None: silence.

    One per process; it may run on a helper thread and must not call kvshm. To feed a logger:
    `kvshm.set_log(logging.getLogger("kvshm").log)`.
    """
    global _function
    cdef kvshm_log_fn c_function = NULL
    if function is not None:
        c_function = _pass_on
    _function = function
    with nogil:  # may wait for a message under way, which needs the GIL
        kvshm_set_log(c_function, NULL)


# A helper thread must not want the GIL of an interpreter that is gone.
atexit.register(set_log, None)
