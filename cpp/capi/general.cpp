#include <errno.h>

#include <cstring>

#include "arena/error.hpp"
#include "blocks/refusal.hpp"
#include "kvshm.h"

namespace {

struct Text {
  int code;
  const char* text;
};
constexpr Text kTexts[] = {
    {0, "success"},
    {KVSHM_ECLOSED, "the arena handle is closed"},
    {KVSHM_EFORKED, "the arena was attached before a fork; attach anew in the child"},
    {KVSHM_ELAYOUT, "not a kvshm arena of this layout"},
    {KVSHM_EIDENTITY, "the arena belongs to another model identity"},
    {KVSHM_EGEOMETRY, "the arena has another block size"},
    {KVSHM_ENOTREADY, "the arena is not ready; its creator has not finished, or died"},
    {KVSHM_ENOSLOT, "all process slots of the arena are taken"},
    {KVSHM_ENOSPACE, "no block to be had: all are held, being filled or pinned"},
    {KVSHM_ENOTMINE, "this process does not hold, or does not fill, that block"},
    {KVSHM_ESTATE, "the block is in the wrong state for this call"},
    {KVSHM_EPART, "slice begun before, not begun, or slices missing"},
    {KVSHM_EPENDING, "the key is being filled: wait for it"},
    {KVSHM_EUNSUPPORTED, "this host cannot do what was required"},
    {KVSHM_EINUSE, "processes are attached to the arena"},
    {KVSHM_ECANCELED, "the wait was cancelled"},
    {KVSHM_EQUOTA, "over the quota of the process or of the tenant"},
    {KVSHM_EPINNED, "as many blocks as may be are pinned (priority 100)"},
    {KVSHM_ETOOLARGE, "more blocks than there will ever be room for"},
    {EINVAL, "invalid argument"},
    {ESTALE, "the arena was removed or replaced; release what you hold and open again"},
    {ENOENT, "there is none"},
    {EEXIST, "it exists already"},
    {ENOSPC, "the mount has not enough space"},
    {ENOMEM, "out of memory"},
    {EACCES, "permission denied"},
    {EPERM, "operation not permitted"},
    {ETIMEDOUT, "timed out"},
    {EBUSY, "busy"},
    {EBADF, "released before, or never valid"},
    {EBADMSG, "the object is damaged"},
    {ERANGE, "outside the block"},
    {EIO, "input/output error"},
};

}  // namespace

extern "C" {

const char* kvshm_version(void) { return KVSHM_VERSION; }

const char* kvshm_strerror(int code) {
  if (code < 0) code = code == INT32_MIN ? 0 : -code;
  for (const Text& t : kTexts)
    if (t.code == code) return t.text;
  return "unknown error";
}

const char* kvshm_last_error(void) { return kvshm::last_error(); }

int kvshm_last_refusal(void) { return kvshm::last_refusal(); }

const char* kvshm_refusal_name(int reason) { return kvshm::refusal_name(reason); }
}
