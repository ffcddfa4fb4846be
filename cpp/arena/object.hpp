// The arena object by name: opening it, checking that a name still leads to the same object.
#pragma once
#include <sys/stat.h>

#include <string>

#include "arena/arena.hpp"
#include "arena/lock.hpp"

namespace kvshm {

// 0 or -EINVAL with a text that names the rule.
int check_name(const char* name);
// dir NULL = the shm mount.
std::string object_path(const char* dir, const char* name);
// A fresh description of the object that this arena is mapped from; empty if the name leads
// elsewhere by now (removed, replaced).
File open_object(const Arena& a, int how);
bool same_object(int fd, const char* path);
// Size of the mount's pages: 4096, or the huge page's on hugetlbfs.
std::uint64_t mount_page(int fd);

}  // namespace kvshm
