#include "arena/pages.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "arena/lock.hpp"
#include "arena/memory.hpp"
#include "arena/object.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MLOCK_ONFAULT
#define MLOCK_ONFAULT 1
#endif

namespace kvshm {
namespace {

// Highest NUMA node + 1.
unsigned node_count() {
  unsigned n = 0;
  char path[64];
  do {
    std::snprintf(path, sizeof path, "/sys/devices/system/node/node%u", n);
  } while (access(path, F_OK) == 0 && ++n < 64);
  return n ? n : 1;
}

int place(Arena& a, std::int32_t numa) {
  const unsigned nodes = node_count();
  if (numa == KVSHM_NUMA_AUTO || (numa == KVSHM_NUMA_INTERLEAVE && nodes == 1)) return 0;
  if (numa >= int(nodes) || numa < KVSHM_NUMA_INTERLEAVE)
    return fail(-KVSHM_EUNSUPPORTED, "NUMA node %d wanted, this host has nodes 0-%u", numa,
                nodes - 1);
  const unsigned long mask =
      numa == KVSHM_NUMA_INTERLEAVE ? (nodes >= 64 ? ~0ul : (1ul << nodes) - 1) : 1ul << numa;
  const int how = numa == KVSHM_NUMA_INTERLEAVE ? MPOL_INTERLEAVE : MPOL_BIND;
  if (syscall(SYS_mbind, a.base, a.geometry.bytes, how, &mask, 65ul, 0u) == 0) return 0;
  if (errno == ENOSYS && nodes == 1) return 0;  // a kernel without NUMA has just this node
  return fail(-KVSHM_EUNSUPPORTED, "mbind to node %d refused: %s", numa, std::strerror(errno));
}

int no_space(const Arena& a, int fd) {
  struct statvfs v;
  const unsigned long long free_bytes =
      fstatvfs(fd, &v) == 0 ? (unsigned long long)v.f_bavail * v.f_bsize : 0;
  return fail(-ENOSPC,
              "%s: wanted %llu bytes, the mount has %llu free; take a smaller size, or enlarge it "
              "(mount -o remount,size=...; containers: --shm-size)",
              a.path.c_str(), (unsigned long long)a.geometry.bytes, free_bytes);
}

int populate(Arena& a, int fd, std::int64_t deadline_ms) {
  constexpr std::uint64_t kStep = 256 << 20;
  for (std::uint64_t at = 0; at < a.geometry.bytes; at += kStep) {
    const std::uint64_t n = a.geometry.bytes - at < kStep ? a.geometry.bytes - at : kStep;
    if (now_ms() > deadline_ms)
      return fail(-ETIMEDOUT, "%s: populating its pages took too long (%llu of %llu bytes done)",
                  a.path.c_str(), (unsigned long long)at, (unsigned long long)a.geometry.bytes);
    if (madvise(a.base + at, n, MADV_POPULATE_WRITE) == 0) continue;
    if (errno == EINTR) {
      at -= kStep;
      continue;
    }
    if (errno == EFAULT) return no_space(a, fd);  // a write would have met SIGBUS
    if (errno != EINVAL)
      return fail(-errno, "%s: populating pages: %s", a.path.c_str(), std::strerror(errno));
    break;  // a kernel before 5.14: fallocate has reserved them, first touch comes later
  }
  return 0;
}

}  // namespace

int map_object(Arena& a, int fd) {
  void* p = KVSHM_STEP_ERROR("attach.map")
                ? MAP_FAILED
                : mmap(nullptr, a.geometry.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED)
    return fail(-errno, "cannot map %llu bytes of %s: %s", (unsigned long long)a.geometry.bytes,
                a.path.c_str(), std::strerror(errno));
  a.base = static_cast<std::byte*>(p);
  if (madvise(p, a.geometry.bytes, MADV_DONTFORK) != 0)
    return fail(-KVSHM_EUNSUPPORTED, "madvise(MADV_DONTFORK) refused: %s", std::strerror(errno));
  if (a.geometry.bytes > a.geometry.data_off)
    madvise(a.base + a.geometry.data_off, a.geometry.bytes - a.geometry.data_off, MADV_DONTDUMP);
  return 0;
}

int reserve_pages(Arena& a, int fd, const kvshm_options& o, std::int64_t deadline_ms) {
  struct statvfs v;
  if (fstatvfs(fd, &v) == 0 && v.f_blocks &&
      std::uint64_t(v.f_bavail) * v.f_bsize < a.geometry.bytes)
    return no_space(a, fd);
  // Pages of a hugetlbfs are out of the host's account already.
  if (mount_page(fd) == kPage)
    if (int rc = check_memory(a, a.geometry.bytes)) return rc;
  if (int rc = place(a, o.numa)) return rc;
  if (o.huge != KVSHM_OFF) madvise(a.base, a.geometry.bytes, MADV_HUGEPAGE);
  if (int rc = populate(a, fd, deadline_ms)) return rc;
  if (fallocate(fd, 0, 0, off_t(a.geometry.bytes)) != 0 && errno != EOPNOTSUPP && errno != EINTR) {
    if (errno == ENOSPC) return no_space(a, fd);
    return fail(-errno, "%s: fallocate: %s", a.path.c_str(), std::strerror(errno));
  }
  a.page_bytes = measured_page_bytes(a);
  if (o.huge == KVSHM_AUTO && a.page_bytes < kHugePage && a.geometry.bytes >= 16 * kHugePage)
    log_line(KVSHM_LOG_WARN,
             "arena %s has 4 KiB pages: its mount gives no 2 MiB ones (tmpfs: huge=advise)",
             a.name.c_str());
  if (o.huge == KVSHM_REQUIRE && a.page_bytes < kHugePage)
    return fail(
        -KVSHM_EUNSUPPORTED,
        "2 MiB pages required, %s gives 4 KiB; mount a tmpfs with huge=advise (or hugetlbfs) "
        "and pass it as dir; `kvshm doctor` says how",
        a.path.c_str());
  return 0;
}

int pin_pages(Arena& a, std::uint32_t mode) {
  if (mode == KVSHM_OFF) return 0;
  a.pinned = syscall(SYS_mlock2, a.base, a.geometry.bytes, MLOCK_ONFAULT) == 0;
  if (a.pinned) return 0;
  const int e = errno;
  struct rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const auto need = (unsigned long long)a.geometry.bytes,
             allowed = (unsigned long long)limit.rlim_cur;
  if (mode == KVSHM_REQUIRE)
    return fail(-KVSHM_EUNSUPPORTED,
                "pinning %llu bytes required, mlock says: %s (memlock limit %llu); raise it "
                "(ulimit -l, LimitMEMLOCK=, --ulimit memlock=-1)",
                need, std::strerror(e), allowed);
  log_line(KVSHM_LOG_WARN,
           "arena %s works unpinned: %llu bytes to pin, mlock says: %s (memlock limit %llu); raise "
           "it (ulimit -l, LimitMEMLOCK=, --ulimit memlock=-1)",
           a.name.c_str(), need, std::strerror(e), allowed);
  return 0;
}

std::uint64_t measured_page_bytes(const Arena& a) {
  // Without data: the page in the middle of the metadata.
  const std::uint64_t from =
      std::uint64_t(a.base) +
      (a.geometry.bytes > a.geometry.data_off ? a.geometry.data_off : a.geometry.bytes / 2);
  std::FILE* f = std::fopen("/proc/self/smaps", "re");
  if (!f) return kPage;
  char line[512];
  bool inside = false;
  unsigned long long rss = 0, huge = 0, kernel_page = 4, lo, hi, kb;
  while (std::fgets(line, sizeof line, f)) {
    if (std::sscanf(line, "%llx-%llx ", &lo, &hi) == 2 && std::strchr(line, '-') < line + 17) {
      inside = from >= lo && from < hi;
    } else if (inside) {
      if (std::sscanf(line, "Rss: %llu", &kb) == 1) rss += kb;
      if (std::sscanf(line, "ShmemPmdMapped: %llu", &kb) == 1) huge += kb;
      if (std::sscanf(line, "FilePmdMapped: %llu", &kb) == 1) huge += kb;
      if (std::sscanf(line, "KernelPageSize: %llu", &kb) == 1) kernel_page = kb;
    }
  }
  std::fclose(f);
  if (kernel_page * 1024 >= kHugePage) return kernel_page * 1024;
  return huge && huge * 2 >= rss ? kHugePage : kPage;
}

int measured_node(const Arena& a) {
  int node = -1;
  if (a.geometry.bytes <= a.geometry.data_off) return -1;
  if (syscall(SYS_get_mempolicy, &node, nullptr, 0ul, a.data, MPOL_F_NODE | MPOL_F_ADDR) != 0)
    return -1;
  return node;
}

}  // namespace kvshm
