// The pages behind an arena: reserved and populated at creation, huge where to be had, placed,
// pinned. What was asked for and what was got are two things; the second is reported.
#pragma once
#include <cstddef>
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// Maps the whole object; MADV_DONTFORK on all, MADV_DONTDUMP on the data. -ENOMEM.
int map_object(Arena& a, int fd);
// Creator only. Every page exists afterwards, so that no later write meets a full mount.
// -ENOSPC, -ENOMEM, -KVSHM_EUNSUPPORTED (huge pages or node required and not to be had),
// -ETIMEDOUT.
int reserve_pages(Arena& a, int fd, const kvshm_options& o, std::int64_t deadline_ms);
// mlock without populating (MLOCK_ONFAULT). 0, or -KVSHM_EUNSUPPORTED when required and refused.
int pin_pages(Arena& a, std::uint32_t mode);
// Page size found under the data, from the kernel's own account.
std::uint64_t measured_page_bytes(const Arena& a);
int measured_node(const Arena& a);  // of the first data page; -1 unknown

}  // namespace kvshm
