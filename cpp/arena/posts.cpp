#include "arena/posts.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "arena/fork.hpp"
#include "arena/object.hpp"
#include "arena/slots.hpp"

namespace kvshm {

int take_post(Arena& a, unsigned post) {
  ForkGuard no_fork;  // a child would copy the description; it also keeps other threads out
  if (a.posts[post]) return 0;
  File f(open_object(a, O_RDWR));
  if (!f) return fail(-ESTALE, "arena %s was removed or replaced: open it again", a.name.c_str());
  const int rc = lock_byte(f.get(), true, post_byte(post));
  if (rc == -EAGAIN) return rc;
  if (rc)
    return fail(-KVSHM_EUNSUPPORTED, "no lock for a post of arena %s: %s", a.name.c_str(),
                std::strerror(-rc));
  return keep_description(a, f.get(), &a.posts[post]);
}

void leave_post(Arena& a, unsigned post) {
  ForkGuard no_fork;
  if (!a.posts[post]) return;
  munmap(a.posts[post], a.anchor_bytes);  // the kernel drops the lock with it
  a.posts[post] = nullptr;
}

}  // namespace kvshm
