#include "arena/memory.hpp"

#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace kvshm {
namespace {

constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

// The number after `field` at the start of a line; field "" = the file is the number.
std::uint64_t number_in(const std::string& path, const char* field) {
  std::FILE* f = std::fopen(path.c_str(), "re");
  if (!f) return kUnknown;
  char line[256];
  std::uint64_t found = kUnknown;
  const std::size_t n = std::strlen(field);
  while (found == kUnknown && std::fgets(line, sizeof line, f)) {
    if (std::strncmp(line, field, n) != 0) continue;
    char* end;
    const std::uint64_t v = std::strtoull(line + n, &end, 10);
    if (end != line + n) found = v;  // "max" is no number
  }
  std::fclose(f);
  return found;
}

std::uint64_t host_room() {
  const std::uint64_t free_kb = number_in("/proc/meminfo", "MemAvailable:");
  const std::uint64_t swap_kb = number_in("/proc/meminfo", "SwapFree:");
  return free_kb == kUnknown ? kUnknown : (free_kb + (swap_kb == kUnknown ? 0 : swap_kb)) * 1024;
}

struct Names {  // of one version's files
  const char *limit, *usage, *cache;
};
constexpr Names kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                             "total_inactive_file "};
constexpr Names kVersion2 = {"/memory.max", "/memory.current", "inactive_file "};

struct Room {
  std::uint64_t bytes = kUnknown, limit = 0;
  std::string group;
};

// From the process's group up to the root of the mount, which in a container is the container's.
void look_upwards(const std::string& mount, std::string group, const Names& names, Room* least) {
  for (;;) {
    const std::string dir = mount + group;
    const std::uint64_t limit = number_in(dir + names.limit, "");
    const std::uint64_t usage = number_in(dir + names.usage, "");
    if (limit != kUnknown && usage != kUnknown) {
      const std::uint64_t cache = number_in(dir + "/memory.stat", names.cache);
      const std::uint64_t kept = cache == kUnknown || cache > usage ? usage : usage - cache;
      const std::uint64_t room = limit > kept ? limit - kept : 0;
      if (room < least->bytes) *least = {room, limit, dir};
    }
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.erase(slash);
  }
}

Room group_room() {
  Room least;
  std::FILE* f = std::fopen("/proc/self/cgroup", "re");
  if (!f) return least;
  char line[1024];
  while (std::fgets(line, sizeof line, f)) {  // id:controllers:path
    line[std::strcspn(line, "\n")] = 0;
    char* controllers = std::strchr(line, ':');
    char* path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (!path) continue;
    *path++ = 0;
    if (std::strcmp(path, "/") == 0) path++;
    if (!controllers[1]) {
      look_upwards("/sys/fs/cgroup", path, kVersion2, &least);
      look_upwards("/sys/fs/cgroup/unified", path, kVersion2, &least);
    } else if (std::strstr(controllers, "memory")) {
      look_upwards("/sys/fs/cgroup/memory", path, kVersion1, &least);
    }
  }
  std::fclose(f);
  return least;
}

}  // namespace

int check_memory(const Arena& a, std::uint64_t wanted) {
  const Room group = group_room();
  if (wanted > group.bytes)
    return fail(-ENOMEM,
                "arena %s: %llu bytes wanted, control group %s leaves %llu of its %llu; take a "
                "smaller size or raise the limit (containers: --memory, resources.limits.memory)",
                a.name.c_str(), (unsigned long long)wanted, group.group.c_str(),
                (unsigned long long)group.bytes, (unsigned long long)group.limit);
  const std::uint64_t host = host_room();
  if (wanted > host)
    return fail(-ENOMEM,
                "arena %s: %llu bytes wanted, this host has %llu available; take a smaller size, "
                "for example %lluGiB",
                a.name.c_str(), (unsigned long long)wanted, (unsigned long long)host,
                (unsigned long long)(host / 2 >> 30));
  return 0;
}

}  // namespace kvshm
