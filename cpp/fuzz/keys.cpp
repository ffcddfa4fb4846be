// Identities, tokens, hashes and extras of any kind: an error or a key, never a byte too many.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "feed.hpp"
#include "kvshm.h"

using namespace kvshm_fuzz;

void kvshm_fuzz::found(const char* what, long long a, long long b) {
  std::fprintf(stderr, "FOUND: %s (%lld, %lld)\n", what, a, b);
  std::abort();
}

namespace {

template <class T>
using Room = std::unique_ptr<T[]>;

bool none(const std::uint8_t* k) {
  static const std::uint8_t zero[16] = {};
  return std::memcmp(k, zero, 16) == 0;
}

// What was made of an identity: its key, or a fixed one if it was refused.
void identity(Feed& f, std::uint8_t key[32]) {
  std::string text[6];
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  const char** fields[] = {&id.model, &id.weights, &id.dtype, &id.layout, &id.parallel, &id.space};
  const unsigned given = f.byte();
  for (unsigned i = 0; i < 6; i++) {
    if (!(given >> i & 1) && i) continue;
    text[i] = f.text(given & 128 ? 255 : 24);
    if (i == 0 && text[0].empty()) text[0] = "m";
    if (given & 64)  // long ones: around the limit of 1023 bytes of JSON
      while (text[i].size() < f.two() % 1100u && !text[i].empty()) text[i] += text[i];
    *fields[i] = text[i].c_str();
  }
  id.block_tokens = f.one_in(8) ? std::uint32_t(f.odd()) : 1u << f.below(11);
  id.epoch = f.byte();
  id.flags = f.one_in(8) ? f.byte() : std::uint32_t(KVSHM_UNKNOWN_WEIGHTS);
  if (f.one_in(16)) id.size = f.odd() % (sizeof id + 1);
  std::uint8_t mark[16], again[32], mark_again[16];
  const int rc = kvshm_identity_derive(&id, key, mark);
  if (rc > 0 || (rc < 0 && !*kvshm_last_error())) found("an identity's code", rc);
  const std::size_t cap = f.two() % 1200u;
  Room<char> buf(new char[cap]);
  const std::int64_t n = kvshm_identity_text(&id, cap ? buf.get() : nullptr, cap);
  if (rc == 0 && n != -28 && (n <= 0 || std::size_t(n) >= cap || buf[std::size_t(n)]))
    found("an identity's text", n);
  char name[KVSHM_NAME_MAX + 1];
  const std::int64_t length = kvshm_auto_name(&id, name, f.below(65));
  if (length > KVSHM_NAME_MAX) found("a name that is too long", length);
  if (rc) {
    std::memset(key, 7, 32);
    return;
  }
  if (kvshm_identity_derive(&id, again, mark_again) || std::memcmp(key, again, 32) ||
      std::memcmp(mark, mark_again, 16) || none(mark))
    found("the same identity, another key");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Feed f(data, size);
  std::uint8_t key[32], extra[16];
  identity(f, key);

  const unsigned nitems = f.below(4);
  Room<kvshm_extra> items(new kvshm_extra[nitems]);
  std::string salts[3];
  for (unsigned i = 0; i < nitems; i++) {
    salts[i] = f.text(80);
    items[i] = {f.one_in(8) ? std::uint32_t(f.odd()) : 1 + f.below(5),
                std::uint32_t(salts[i].size()), f.one_in(16) ? nullptr : salts[i].data()};
  }
  const int rc = kvshm_extra_digest(key, items.get(), nitems, extra);
  if (rc) std::memset(extra, 0, 16);
  if (rc == 0 && none(extra) != (nitems == 0)) found("an extra's digest", nitems);

  const std::uint32_t block = f.one_in(8) ? std::uint32_t(f.odd()) : 1u << f.below(6);
  const std::size_t n = f.two() % 300u, cap = f.below(64);
  Room<std::uint32_t> tokens(new std::uint32_t[n]);
  f.bytes(tokens.get(), n * 4);
  Room<kvshm_key> out(new kvshm_key[cap]), tail(new kvshm_key[cap]);
  const bool null = f.one_in(16);
  const std::int64_t got = kvshm_keys_tokens(key, extra, nullptr, null ? nullptr : tokens.get(), n,
                                             block, out.get(), cap);
  if (got > std::int64_t(cap)) found("more keys than there is room for", got);
  if (got > 1) {  // a chain goes on from any of its keys
    const std::size_t from = 1 + f.byte() % std::size_t(got - 1);
    const std::int64_t more =
        kvshm_keys_tokens(key, extra, out[from - 1], tokens.get() + from * block, n - from * block,
                          block, tail.get(), cap - from);
    if (more != got - std::int64_t(from) ||
        std::memcmp(out[from], tail[0], 16 * std::size_t(more)) != 0)
      found("a chain continued elsewhere", got, more);
  }
  for (std::int64_t i = 0; i < got; i++)
    if (none(out[std::size_t(i)])) found("a key of zeros");

  const std::size_t width = f.one_in(8) ? std::size_t(f.odd()) : 8 + f.below(121);
  const std::size_t hashes = f.below(8), bytes = width <= 128 ? width * hashes : 0;
  Room<std::uint8_t> from(new std::uint8_t[bytes]);
  f.bytes(from.get(), bytes);
  Room<kvshm_key> bound(new kvshm_key[hashes]);
  const std::int64_t made =
      kvshm_keys_hashes(key, f.one_in(2) ? extra : nullptr, from.get(), width, hashes, bound.get());
  if (made != std::int64_t(hashes) && (made >= 0 || (width >= 8 && width <= 128)))
    found("bound hashes", made);
  return 0;
}
