#include "tier/engine.hpp"

#include <errno.h>
#include <kvshm_tier.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "arena/error.hpp"
#include "tier/pool_engine.hpp"
#include "tier/uring_engine.hpp"

namespace kvshm::tier {
namespace {

// 0, 1 or 2; -1: this kernel has no such switch (before 6.6).
int disabled_by_sysctl() {
  int value = -1;
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> value;
  return value;
}

bool has_admin_capability() {
  constexpr unsigned kSysAdmin = 21;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "CapEff:") {
      unsigned long long set = 0;
      status >> std::hex >> set;
      return set >> kSysAdmin & 1;
    }
  return false;
}

std::string filtered(const std::string& call, const char* error) {
  return "a filter of system calls (seccomp) refuses " + call + " (" + error + ")";
}

// `call` is the one that was refused, of the kernel's; "": none was asked.
std::string cause(int rc, const std::string& call) {
  if (call.empty()) return "io_uring: this libkvshm was built without it";
  const bool made = call != "io_uring_setup";  // the kernel has it, and lets this process make one
  switch (rc) {
    case -ENOSYS:
      if (made) return filtered(call, "ENOSYS");
      if (disabled_by_sysctl() >= 0) return filtered(call, "ENOSYS");  // a kernel that has it
      return "io_uring: this kernel has none, or a filter of system calls (seccomp) hides it";
    case -EPERM:
    case -EACCES:
      if (!made && disabled_by_sysctl() == 2)
        return "io_uring is switched off: sysctl kernel.io_uring_disabled = 2";
      if (!made && disabled_by_sysctl() == 1 && !has_admin_capability())
        return "io_uring is for few here: sysctl kernel.io_uring_disabled = 1, and this process "
               "has "
               "neither CAP_SYS_ADMIN nor the group of kernel.io_uring_group";
      return filtered(call, rc == -EPERM ? "EPERM" : "EACCES");
    case -ENOMEM: {
      struct rlimit limit = {};
      getrlimit(RLIMIT_MEMLOCK, &limit);
      if (limit.rlim_cur == RLIM_INFINITY) return "io_uring: no memory for a ring";
      return "io_uring: no memory for a ring: RLIMIT_MEMLOCK is " + std::to_string(limit.rlim_cur) +
             " bytes, of all rings of this user together";
    }
    default:
      return "io_uring: " + call + ": " + std::strerror(-rc);
  }
}

}  // namespace

int open_engine(std::uint32_t want, const EngineOptions& o, std::unique_ptr<Engine>* out,
                std::string* why) {
  why->clear();
  if (want == KVSHM_TIER_THREADS) return PoolEngine::open(o, out);
  std::string call = "-";
  const int rc = UringEngine::open(o, out, &call);
  if (rc == 0) return 0;
  if (call == "-") return rc;  // the arena's, not the kernel's; it has a text
  *why = cause(rc, call);
  if (want == KVSHM_TIER_URING) return fail(-KVSHM_EUNSUPPORTED, "%s", why->c_str());
  return PoolEngine::open(o, out);
}

}  // namespace kvshm::tier
