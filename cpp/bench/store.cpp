// SPDX-License-Identifier: Apache-2.0
// store: another process's blocks. Creates the arena, fills it with chains, and stays attached.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "arena.hpp"

namespace bench {
namespace {

// n blocks as one request, registered, then given back as one lease.
void put_chain(kvshm_arena* a, const Key* keys, std::uint32_t n, std::uint64_t block_bytes) {
  std::vector<kvshm_handle> h(n);
  must(kvshm_allocate(a, n, keys->api(), nullptr, h.data(), nullptr, nullptr), "allocate");
  for (std::uint32_t i = 0; i < n && block_bytes; i++)  // content: its own key, over and over
    for (std::uint64_t at = 0; at < block_bytes; at += sizeof(Key))
      std::memcpy(static_cast<char*>(kvshm_block_data(a, h[i].id)) + at, &keys[i], sizeof(Key));
  if (must(kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), nullptr), "register") !=
      std::int64_t(n))
    die("registered fewer than %u blocks", n);
  kvshm_lease lease = 0;
  must(kvshm_lease_make(a, h.data(), n, 0, &lease), "lease");
  must(kvshm_release(a, lease), "release");
}

}  // namespace

int store(const Args& args) {
  kvshm_options o = options_of(args);
  o.blocks = args.number("blocks");
  o.block_bytes = args.number("block_bytes", 0);
  o.huge = args.number("huge") ? KVSHM_REQUIRE : KVSHM_OFF;
  o.pin = KVSHM_OFF;  // nothing is swapped while this runs, and locking costs the quick runs
  if (!o.block_bytes) o.huge = args.number("huge") ? KVSHM_AUTO : KVSHM_OFF;
  const std::string name = args.text("name");
  const std::uint64_t fill = args.number("fill", o.blocks);
  const auto chain = std::uint32_t(args.number("chain", 512));

  std::uint64_t start = now_ns();
  kvshm_arena* a = nullptr;
  must(kvshm_create(&a, name.c_str(), &o), "create");
  const double create_ms = double(now_ns() - start) / 1e6;
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, fill);
  start = now_ns();
  for (std::uint64_t i = 0; i < fill; i += chain)
    put_chain(a, &keys[i], std::uint32_t(std::min<std::uint64_t>(chain, fill - i)), o.block_bytes);
  Line facts;
  facts.add("create_ms", create_ms);
  if (fill) facts.add("fill_ns", double(now_ns() - start) / double(fill));
  const kvshm_info info = info_of(a);
  facts.add("bytes", info.bytes).add("blocks", info.blocks);
  facts.add("metadata_bytes", info.metadata_bytes).add("private_bytes", info.private_bytes);
  facts.add("path", info.path);
  add_pages(facts, a);
  const int rc = serve(facts, [](const Order&, Line&) {});
  must(kvshm_close(a, 10000), "close");
  must(kvshm_remove(name.c_str(), o.dir, 1), "remove");
  return rc;
}

}  // namespace bench
