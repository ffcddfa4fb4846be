// SPDX-License-Identifier: Apache-2.0
// Identity and keys against the published vectors, through the C API and through cpp/index.
#include "index/keys.hpp"

#include <gtest/gtest.h>
#include <kvshm.h>

#include <array>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

namespace {

struct identity_case {
  const char* name;
  std::array<std::string, 6> texts;
  uint32_t block_tokens, epoch;
  const char *key, *fingerprint, *text;
};
struct extra_case {
  const char *name, *key;
  std::vector<std::pair<uint32_t, std::string>> items;
  const char* digest;
};
struct token_case {
  const char *name, *key, *extra, *parent;
  uint32_t block_tokens;
  std::vector<uint32_t> tokens;
  std::vector<std::string> keys;
};
struct hash_case {
  const char *name, *key, *extra;
  std::vector<std::string> hashes, keys;
};
#include "key_vectors.inc"

using bytes16 = std::array<uint8_t, 16>;
using keys_t = std::vector<bytes16>;

kvshm_key* raw(keys_t& keys) { return reinterpret_cast<kvshm_key*>(keys.data()); }

std::string hex(const void* data, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; i++)
    for (int shift : {4, 0})
      out += "0123456789abcdef"[static_cast<const uint8_t*>(data)[i] >> shift & 15];
  return out;
}

std::vector<uint8_t> unhex(const std::string& text) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i < text.size(); i += 2)
    out.push_back(uint8_t(std::stoul(text.substr(i, 2), nullptr, 16)));
  return out;
}

std::vector<std::string> hex(const keys_t& keys) {
  std::vector<std::string> out;
  for (const bytes16& k : keys) out.push_back(hex(k.data(), 16));
  return out;
}

kvshm_identity as_c(const identity_case& c) {
  return {sizeof(kvshm_identity),
          c.texts[0].c_str(),
          c.texts[1].c_str(),
          c.texts[2].c_str(),
          c.texts[3].c_str(),
          c.texts[4].c_str(),
          c.texts[5].c_str(),
          c.block_tokens,
          c.epoch,
          KVSHM_UNKNOWN_WEIGHTS,
          0};
}

kvshm_identity plain() {
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  id.model = "m";
  id.block_tokens = 16;
  id.flags = KVSHM_UNKNOWN_WEIGHTS;
  return id;
}

struct derived {
  int rc;
  std::string key, fingerprint;
};

derived derive(const kvshm_identity& id) {
  uint8_t key[32] = {}, fingerprint[16] = {};
  const int rc = kvshm_identity_derive(&id, key, fingerprint);
  return {rc, hex(key, 32), hex(fingerprint, 16)};
}

TEST(Vectors, Identity) {
  for (const identity_case& c : identity_cases) {
    SCOPED_TRACE(c.name);
    const kvshm_identity id = as_c(c);
    const derived d = derive(id);
    EXPECT_EQ(d.rc, 0);
    EXPECT_EQ(d.key, c.key);
    EXPECT_EQ(d.fingerprint, c.fingerprint);
    char line[kvshm::identity_text_bytes];
    EXPECT_EQ(kvshm_identity_text(&id, line, sizeof line), int64_t(strlen(c.text)));
    EXPECT_STREQ(line, c.text);
  }
}

TEST(Vectors, Extra) {
  for (const extra_case& c : extra_cases) {
    SCOPED_TRACE(c.name);
    std::vector<std::vector<uint8_t>> data;
    std::vector<kvshm_extra> items;
    for (const auto& item : c.items) data.push_back(unhex(item.second));
    for (size_t i = 0; i < data.size(); i++)
      items.push_back({c.items[i].first, uint32_t(data[i].size()), data[i].data()});
    bytes16 out;
    ASSERT_EQ(kvshm_extra_digest(unhex(c.key).data(), items.data(), items.size(), out.data()), 0);
    EXPECT_EQ(hex(out.data(), 16), c.digest);
  }
}

TEST(Vectors, Tokens) {
  for (const token_case& c : token_cases) {
    SCOPED_TRACE(c.name);
    const auto key = unhex(c.key), extra = unhex(c.extra), parent = unhex(c.parent);
    const size_t n = c.tokens.size() / c.block_tokens;
    keys_t out(n + 1, bytes16{0xee});
    ASSERT_EQ(kvshm_keys_tokens(key.data(), extra.data(), parent.data(), c.tokens.data(),
                                c.tokens.size(), c.block_tokens, raw(out), out.size()),
              int64_t(n));
    EXPECT_EQ(out.back(), bytes16{0xee}) << "wrote beyond the full blocks";
    out.pop_back();
    EXPECT_EQ(hex(out), c.keys);

    kvshm::token_chain chain(key.data(), extra.data(), parent.data());
    for (size_t i = 0; i < n; i++) {
      chain.append(c.tokens.data() + i * c.block_tokens, c.block_tokens);
      EXPECT_EQ(hex(chain.last(), 16), c.keys[i]) << "block " << i << " one at a time";
    }
  }
}

TEST(Vectors, Hashes) {
  for (const hash_case& c : hash_cases) {
    SCOPED_TRACE(c.name);
    std::vector<uint8_t> joined = {0xaa};  // odd address: engines hand over any alignment
    for (const std::string& h : c.hashes)
      for (uint8_t b : unhex(h)) joined.push_back(b);
    const size_t n = c.hashes.size();
    keys_t out(n);
    ASSERT_EQ(kvshm_keys_hashes(unhex(c.key).data(), unhex(c.extra).data(), joined.data() + 1,
                                c.hashes[0].size() / 2, n, raw(out)),
              int64_t(n));
    EXPECT_EQ(hex(out), c.keys);
  }
}

TEST(Identity, EveryFieldChangesTheKey) {
  const derived base = derive(plain());
  EXPECT_EQ(derive(plain()).key, base.key);
  std::vector<kvshm_identity> others(8, plain());
  others[0].model = "n";
  others[1].weights = "m";
  others[2].dtype = "m";
  others[3].layout = "m";
  others[4].parallel = "m";
  others[5].space = "m";
  others[6].block_tokens = 32;
  others[7].epoch = 1;
  std::vector<std::string> seen = {base.key};
  for (size_t i = 0; i < others.size(); i++) {
    const derived d = derive(others[i]);
    for (const std::string& key : seen) EXPECT_NE(d.key, key) << "field " << i;
    seen.push_back(d.key);
    // An arena serves all epochs of its identity, so that a new epoch needs no new arena.
    if (i == 7)
      EXPECT_EQ(d.fingerprint, base.fingerprint);
    else
      EXPECT_NE(d.fingerprint, base.fingerprint) << "field " << i;
  }
}

TEST(Identity, NullIsEmpty) {
  kvshm_identity id = plain();
  id.weights = id.dtype = id.layout = id.parallel = id.space = "";
  EXPECT_EQ(derive(id).key, derive(plain()).key);
}

TEST(Identity, RefusesWhatIsNotUtf8) {
  for (const char* bad :
       {"\x80", "\xc3", "\xc3(", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xe2\x82", "\xed\xa0\x80",
        "\xf0\x80\x80\xaf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "ok\xfe"}) {
    kvshm_identity id = plain();
    id.dtype = bad;
    EXPECT_EQ(derive(id).rc, -EINVAL) << hex(bad, strlen(bad));
    char line[64];
    EXPECT_EQ(kvshm_identity_text(&id, line, sizeof line), -EINVAL);
  }
  for (const char* good : {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    kvshm_identity id = plain();
    id.dtype = good;
    EXPECT_EQ(derive(id).rc, 0) << hex(good, strlen(good));
  }
  // NUL cannot come through the C struct, but through C++ callers.
  kvshm::identity_fields fields;
  fields.model = std::string_view("a\0b", 3);
  fields.block_tokens = 16;
  EXPECT_EQ(kvshm::identity_check(fields), -EINVAL);
  const std::vector<char> cut = {'m', '\xc3'};  // on the heap: ASan sees a read beyond
  fields.model = std::string_view(cut.data(), cut.size());
  EXPECT_EQ(kvshm::identity_check(fields), -EINVAL);
}

TEST(Identity, TextHasALimit) {
  char line[2048];
  kvshm_identity id = plain();
  const int64_t rest = kvshm_identity_text(&id, line, sizeof line) - 1;  // without the model
  std::string model(size_t(1023 - rest), 'x');
  id.model = model.c_str();
  EXPECT_EQ(derive(id).rc, 0);
  EXPECT_EQ(kvshm_identity_text(&id, line, 1024), 1023);
  EXPECT_EQ(line[1022], '}');
  EXPECT_EQ(kvshm_identity_text(&id, line, 1023), -ENOSPC);
  EXPECT_EQ(line[0], '\0');
  EXPECT_EQ(kvshm_identity_text(&id, nullptr, 0), -ENOSPC);
  model += 'x';
  id.model = model.c_str();
  EXPECT_EQ(derive(id).rc, -ENAMETOOLONG);
  model = std::string(100'000, 'x');
  id.model = model.c_str();
  EXPECT_EQ(derive(id).rc, -ENAMETOOLONG);
}

TEST(Identity, RefusesBadArguments) {
  uint8_t key[32], fingerprint[16];
  char line[64];
  kvshm_identity id = plain();
  EXPECT_EQ(kvshm_identity_derive(nullptr, key, fingerprint), -EINVAL);
  EXPECT_EQ(kvshm_identity_derive(&id, nullptr, fingerprint), -EINVAL);
  EXPECT_EQ(kvshm_identity_derive(&id, key, nullptr), -EINVAL);
  EXPECT_EQ(kvshm_identity_text(nullptr, line, sizeof line), -EINVAL);
  EXPECT_EQ(kvshm_identity_text(&id, nullptr, 1), -EINVAL);
  for (int i = 0; i < 4; i++) {
    id = plain();
    if (i == 0) id.model = nullptr;
    if (i == 1) id.model = "";
    if (i == 2) id.block_tokens = 0;
    if (i == 3) id.size = sizeof id - 1;
    EXPECT_EQ(derive(id).rc, -EINVAL) << i;
  }
}

TEST(Identity, LaterStructsAreTakenOnlyIfTheirNewFieldsAreZero) {
  struct later {
    kvshm_identity known;
    uint64_t added;
  } id = {plain(), 0};
  id.known.size = sizeof id;
  EXPECT_EQ(derive(id.known).rc, 0);
  EXPECT_EQ(derive(id.known).key, derive(plain()).key);
  id.added = 1;
  EXPECT_EQ(derive(id.known).rc, -EINVAL);
}

// semantics 11
TEST(Identity, BlockSizes) {
  const kvshm_identity base = plain();
  const std::vector<uint32_t> tokens(1024, 7);
  uint8_t key[32], fingerprint[16];
  ASSERT_EQ(kvshm_identity_derive(&base, key, fingerprint), 0);
  for (uint32_t n = 0; n <= 4096; n++) {
    const bool good = n == 1 || n == 2 || n == 4 || n == 8 || n == 16 || n == 32 || n == 64 ||
                      n == 128 || n == 256 || n == 512 || n == 1024;
    kvshm_identity id = base;
    id.block_tokens = n;
    EXPECT_EQ(derive(id).rc, good ? 0 : -EINVAL) << n;
    kvshm_key one[1];
    EXPECT_EQ(kvshm_keys_tokens(key, nullptr, nullptr, tokens.data(), tokens.size(), n, one, 1),
              good ? 1 : -EINVAL)
        << n;
  }
}

TEST(Identity, ErrorsSayWhatIsWrong) {
  kvshm_identity id = plain();
  id.layout = "\xff";
  derive(id);
  EXPECT_NE(std::string(kvshm_last_error()).find("layout"), std::string::npos);
  id.layout = "";
  id.block_tokens = 48;
  derive(id);
  EXPECT_NE(std::string(kvshm_last_error()).find("48"), std::string::npos);
}

class Keys : public testing::Test {
 protected:
  void SetUp() override {
    const kvshm_identity id = plain();
    uint8_t fingerprint[16];
    ASSERT_EQ(kvshm_identity_derive(&id, key_, fingerprint), 0);
    for (uint32_t i = 0; i < 160; i++) tokens_.push_back(i * 7919);
  }
  keys_t tokens(const uint8_t* extra, const uint8_t* parent, size_t from = 0) {
    keys_t out((tokens_.size() - from) / 16);
    EXPECT_EQ(kvshm_keys_tokens(key_, extra, parent, tokens_.data() + from, tokens_.size() - from,
                                16, raw(out), out.size()),
              int64_t(out.size()));
    return out;
  }
  uint8_t key_[32];
  std::vector<uint32_t> tokens_;
};

TEST_F(Keys, ChainGoesOnFromItsLastKey) {
  const keys_t whole = tokens(nullptr, nullptr);
  const keys_t rest = tokens(nullptr, whole[3].data(), 64);
  EXPECT_EQ(rest, keys_t(whole.begin() + 4, whole.end()));
  EXPECT_NE(tokens(nullptr, nullptr, 64), rest) << "same blocks at another place";

  keys_t in_place = {whole.begin() + 3, whole.begin() + 4};  // out may hold the parent
  in_place.resize(6);
  ASSERT_EQ(kvshm_keys_tokens(key_, nullptr, in_place[0].data(), tokens_.data() + 64, 96, 16,
                              raw(in_place), 6),
            6);
  EXPECT_EQ(in_place, rest);
}

TEST_F(Keys, NullExtraAndParentAreZeros) {
  const bytes16 zeros = {};
  EXPECT_EQ(tokens(nullptr, nullptr), tokens(zeros.data(), zeros.data()));
}

TEST_F(Keys, ExtraMayChangeFromABlockOn) {
  const bytes16 picture = {9};
  kvshm::token_chain chain(key_, nullptr, nullptr);
  chain.append(tokens_.data(), 16);
  chain.set_extra(picture.data());
  chain.append(tokens_.data() + 16, 16);
  const keys_t none = tokens(nullptr, nullptr);
  const keys_t after = tokens(picture.data(), none[0].data(), 16);
  EXPECT_EQ(hex(chain.last(), 16), hex(after[0].data(), 16));
  EXPECT_NE(after[0], none[1]);
}

TEST_F(Keys, CapLimitsTheNumber) {
  const keys_t whole = tokens(nullptr, nullptr);
  keys_t out(3);
  EXPECT_EQ(
      kvshm_keys_tokens(key_, nullptr, nullptr, tokens_.data(), tokens_.size(), 16, raw(out), 2),
      2);
  EXPECT_EQ(out, (keys_t{whole[0], whole[1], bytes16{}}));
}

TEST_F(Keys, NoTwoKindsShareAKey) {
  // The same 16 bytes as a block of four tokens and as an engine's hash; also as their own parent.
  keys_t chained(1), bound(1);
  kvshm_keys_tokens(key_, nullptr, nullptr, tokens_.data(), 4, 4, raw(chained), 1);
  kvshm_keys_hashes(key_, nullptr, tokens_.data(), 16, 1, raw(bound));
  EXPECT_NE(chained, bound);
}

TEST_F(Keys, HashesAreBoundToIdentityExtraAndLength) {
  std::vector<uint8_t> hash(64, 5);
  const bytes16 salt = {1};
  uint8_t other[32];
  std::copy(key_, key_ + 32, other);
  other[31] ^= 1;
  keys_t base(1), k(1);
  ASSERT_EQ(kvshm_keys_hashes(key_, nullptr, hash.data(), 32, 1, raw(base)), 1);
  kvshm_keys_hashes(other, nullptr, hash.data(), 32, 1, raw(k));
  EXPECT_NE(k, base);
  kvshm_keys_hashes(key_, salt.data(), hash.data(), 32, 1, raw(k));
  EXPECT_NE(k, base);
  kvshm_keys_hashes(key_, nullptr, hash.data(), 33, 1, raw(k));
  EXPECT_NE(k, base);
  hash[31] ^= 1;
  kvshm_keys_hashes(key_, nullptr, hash.data(), 32, 1, raw(k));
  EXPECT_NE(k, base);
}

TEST_F(Keys, RefuseBadArguments) {
  keys_t out(1);
  bytes16 extra;
  const uint32_t* t = tokens_.data();
  EXPECT_EQ(kvshm_keys_tokens(nullptr, nullptr, nullptr, t, 16, 16, raw(out), 1), -EINVAL);
  EXPECT_EQ(kvshm_keys_tokens(key_, nullptr, nullptr, nullptr, 16, 16, raw(out), 1), -EINVAL);
  EXPECT_EQ(kvshm_keys_tokens(key_, nullptr, nullptr, t, 16, 0, raw(out), 1), -EINVAL);
  EXPECT_EQ(kvshm_keys_tokens(key_, nullptr, nullptr, t, 16, 16, nullptr, 1), -EINVAL);
  EXPECT_EQ(kvshm_keys_tokens(key_, nullptr, nullptr, t, 15, 16, nullptr, 0), 0);
  EXPECT_EQ(kvshm_keys_tokens(key_, nullptr, nullptr, nullptr, 0, 16, raw(out), 1), 0);

  const std::vector<uint8_t> h(256);
  EXPECT_EQ(kvshm_keys_hashes(nullptr, nullptr, h.data(), 32, 1, raw(out)), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, nullptr, 32, 1, raw(out)), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, h.data(), 32, 1, nullptr), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, h.data(), 7, 1, raw(out)), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, h.data(), 8, 1, raw(out)), 1);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, h.data(), 129, 1, raw(out)), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, h.data(), 32, SIZE_MAX / 128, raw(out)), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, h.data(), 32, SIZE_MAX, raw(out)), -EINVAL);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, nullptr, 32, 0, nullptr), 0);
  EXPECT_EQ(kvshm_keys_hashes(key_, nullptr, nullptr, 0, 0, nullptr), 0);

  kvshm_extra item = {KVSHM_EXTRA_SALT, 1, "s"};
  EXPECT_EQ(kvshm_extra_digest(nullptr, &item, 1, extra.data()), -EINVAL);
  EXPECT_EQ(kvshm_extra_digest(key_, nullptr, 1, extra.data()), -EINVAL);
  EXPECT_EQ(kvshm_extra_digest(key_, &item, 1, nullptr), -EINVAL);
  item.type = 0;
  EXPECT_EQ(kvshm_extra_digest(key_, &item, 1, extra.data()), -EINVAL);
  item = {KVSHM_EXTRA_SALT, 1, nullptr};
  EXPECT_EQ(kvshm_extra_digest(key_, &item, 1, extra.data()), -EINVAL);
}

TEST_F(Keys, AreNeverZero) {
  bytes16 zero = {}, one = {1}, last = {};
  kvshm::never_zero(zero.data());
  EXPECT_EQ(zero, one);
  last[15] = 7;
  const bytes16 before = last;
  kvshm::never_zero(last.data());
  EXPECT_EQ(last, before);
}

TEST_F(Keys, ThreadsAgree) {
  const keys_t expected = tokens(nullptr, nullptr);
  std::vector<keys_t> got(4);
  std::vector<std::thread> threads;
  for (keys_t& mine : got)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++) mine = tokens(nullptr, nullptr);
    });
  for (std::thread& t : threads) t.join();
  for (const keys_t& mine : got) EXPECT_EQ(mine, expected);
}

}  // namespace
