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

// Calls fn(version, path) for each hierarchy that may account for this process's memory.
template <class Fn>
void each_group(Fn fn) {
  std::FILE* f = std::fopen("/proc/self/cgroup", "re");
  if (!f) return;
  char line[1024];
  while (std::fgets(line, sizeof line, f)) {  // id:controllers:path
    line[std::strcspn(line, "\n")] = 0;
    char* controllers = std::strchr(line, ':');
    char* path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
    if (!path) continue;
    *path++ = 0;
    if (!controllers[1])
      fn(2, path);
    else if (std::strstr(controllers, "memory"))
      fn(1, path);
  }
  std::fclose(f);
}

Room group_room() {
  Room least;
  each_group([&](int version, const char* path) {
    if (std::strcmp(path, "/") == 0) path++;
    if (version == 2) {
      look_upwards("/sys/fs/cgroup", path, kVersion2, &least);
      look_upwards("/sys/fs/cgroup/unified", path, kVersion2, &least);
    } else {
      look_upwards("/sys/fs/cgroup/memory", path, kVersion1, &least);
    }
  });
  return least;
}

}  // namespace

void charged_group(char* out, std::size_t cap) {
  *out = 0;
  each_group([&](int version, const char* path) {
    if (version == 1 || !*out) std::snprintf(out, cap, "%s", path);  // on 1 the memory is there
  });
}

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
