#include "arena/object.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cstring>

namespace kvshm {

int check_name(const char* name) {
  const std::size_t n = name ? std::strlen(name) : 0;
  bool ok = n >= 1 && n <= KVSHM_NAME_MAX;
  for (std::size_t i = 0; ok && i < n; i++) {
    const char c = name[i];
    const bool alnum = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    ok = alnum || (i && (c == '_' || c == '-'));
  }
  if (ok) return 0;
  return fail(-EINVAL,
              "arena name '%.80s': wanted 1-63 of a-z 0-9 _ -, beginning with a letter or digit",
              name ? name : "(null)");
}

std::string object_path(const char* dir, const char* name) {
  std::string p = dir && *dir ? dir : "/dev/shm";
  while (p.size() > 1 && p.back() == '/') p.pop_back();
  return p + "/kvshm." + name;
}

File open_object(const Arena& a, int how) {
  if (KVSHM_STEP_ERROR("object.open")) return File();
  // M:life.1
  File f(open(a.path.c_str(), how | O_CLOEXEC | O_NOFOLLOW));
  struct stat st;
  if (f && (fstat(f.get(), &st) != 0 || st.st_ino != a.ino || st.st_dev != a.dev)) {
    f.reset();
    errno = ESTALE;  // and no error of an earlier call
  }
  return f;
}

bool same_object(int fd, const char* path) {
  struct stat here, there;
  return fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_ino == there.st_ino &&
         here.st_dev == there.st_dev;
}

std::uint64_t mount_page(int fd) {
  struct statfs fs;
  if (fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC) return std::uint64_t(fs.f_bsize);
  return kPage;
}

}  // namespace kvshm
