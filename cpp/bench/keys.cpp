// SPDX-License-Identifier: Apache-2.0
// keys: what deriving a key costs, from token ids and from an engine's own block hashes.
#include <cstring>

#include "bench.hpp"

namespace bench {

int keys(const Args& args) {
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  id.model = "bench";
  id.weights = "bench";
  id.block_tokens = std::uint32_t(args.number("block_tokens", 16));
  std::uint8_t key[32], fingerprint[16];
  must(kvshm_identity_derive(&id, key, fingerprint), "identity");
  constexpr std::uint32_t kBlocks = 512;
  std::vector<std::uint32_t> tokens(std::size_t(kBlocks) * id.block_tokens);
  for (std::size_t i = 0; i < tokens.size(); i++) tokens[i] = std::uint32_t(i * 2654435761u >> 15);
  const std::size_t hash_bytes = args.number("hash_bytes", 32);
  std::vector<std::uint8_t> hashes(kBlocks * hash_bytes);
  for (std::size_t i = 0; i < hashes.size(); i++) hashes[i] = std::uint8_t(i * 131 >> 3);
  std::vector<Key> out_keys(kBlocks);
  auto* out_api = reinterpret_cast<kvshm_key*>(out_keys.data());
  Line facts;
  return serve(facts, [&](const Order& order, Line& out) {
    const std::uint64_t end = now_ns() + order.number * 1000000;
    std::vector<double> cost;
    for (std::uint64_t last = now_ns(); last < end;) {
      const std::uint64_t start = now_ns();
      const std::int64_t n =
          order.word == "tokens"
              ? kvshm_keys_tokens(key, nullptr, nullptr, tokens.data(), tokens.size(),
                                  id.block_tokens, out_api, kBlocks)
              : kvshm_keys_hashes(key, nullptr, hashes.data(), hash_bytes, kBlocks, out_api);
      last = now_ns();
      if (must(n, "keys") != kBlocks) die("fewer keys than blocks");
      cost.push_back(double(last - start) / kBlocks);
    }
    out.add("ns", median(cost));
  });
}

}  // namespace bench
