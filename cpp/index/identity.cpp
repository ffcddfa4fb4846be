// SPDX-License-Identifier: Apache-2.0
#include "identity.hpp"

#include <strings.h>

#include <cerrno>

#include "arena/error.hpp"
#include "digest.hpp"
#include "keys.hpp"

namespace kvshm {
namespace {

constexpr uint8_t encoding_version = 1;

// Field tags of the encoding. Never reuse or renumber one.
enum : uint8_t {
  t_model = 1,
  t_weights,
  t_dtype,
  t_layout,
  t_parallel,
  t_space,
  t_tokens,
  t_epoch
};

void put(digest& d, uint8_t tag, std::string_view text) noexcept {
  d.u8(tag);
  d.u32(uint32_t(text.size()));
  d.bytes(text.data(), text.size());
}

void put(digest& d, uint8_t tag, uint32_t value) noexcept {
  d.u8(tag);
  d.u32(4);
  d.u32(value);
}

void encode(digest& d, const identity_fields& id, bool with_epoch) noexcept {
  d.u8(encoding_version);
  put(d, t_model, id.model);
  put(d, t_weights, id.weights);
  put(d, t_dtype, id.dtype);
  put(d, t_layout, id.layout);
  put(d, t_parallel, id.parallel);
  put(d, t_space, id.space);
  put(d, t_tokens, id.block_tokens);
  if (with_epoch) put(d, t_epoch, id.epoch);
}

constexpr uint32_t bad_utf8 = 0xffffffffu;

// Takes one code point off the front of text; bad_utf8 for overlong forms, surrogates and beyond
// U+10FFFF too, so that every accepted text has one encoding.
uint32_t next_code_point(std::string_view& text) noexcept {
  const auto at = [&](size_t i) { return uint8_t(text[i]); };
  const uint8_t first = at(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length == 0 || text.size() < length) return bad_utf8;
  uint32_t code = length == 1 ? first : first & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if ((at(i) & 0xc0) != 0x80) return bad_utf8;
    code = code << 6 | (at(i) & 0x3fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return bad_utf8;
  text.remove_prefix(length);
  return code;
}

// Writes what fits, counts everything.
class json_line {
 public:
  json_line(char* buf, size_t cap) noexcept : buf_(buf), cap_(cap) {}

  void raw(std::string_view text) noexcept {
    for (char c : text) put(c);
  }
  void text(std::string_view s) noexcept {
    put('"');
    while (!s.empty()) {
      const uint32_t code = next_code_point(s);
      if (code == bad_utf8) {  // only reached with unchecked fields: show the rest as unknown
        raw("\\ufffd");
        break;
      }
      character(code);
    }
    put('"');
  }
  void number(uint32_t value) noexcept {
    char digits[10];
    size_t n = 0;
    do digits[n++] = char('0' + value % 10);
    while (value /= 10);
    while (n) put(digits[--n]);
  }
  size_t length() const noexcept { return length_; }

 private:
  void put(char c) noexcept {
    if (length_ < cap_) buf_[length_] = c;
    length_++;
  }
  void character(uint32_t code) noexcept {
    static constexpr std::string_view plain = "\b\t\n\f\r\"\\", letter = "btnfr\"\\";
    const size_t found = code < 0x80 ? plain.find(char(code)) : plain.npos;
    if (found != plain.npos) {
      put('\\');
      put(letter[found]);
    } else if (code >= 0x20 && code < 0x7f) {
      put(char(code));
    } else if (code < 0x10000) {
      unit(code);
    } else {
      unit(0xd800 + ((code - 0x10000) >> 10));
      unit(0xdc00 + ((code - 0x10000) & 0x3ff));
    }
  }
  void unit(uint32_t utf16) noexcept {
    raw("\\u");
    for (int shift = 12; shift >= 0; shift -= 4) put("0123456789abcdef"[utf16 >> shift & 15]);
  }

  char* buf_;
  size_t cap_, length_ = 0;
};

// Two sets of weights under one such name would share their blocks.
bool says_nothing(std::string_view weights) noexcept {
  while (!weights.empty() && weights.front() == ' ') weights.remove_prefix(1);
  while (!weights.empty() && weights.back() == ' ') weights.remove_suffix(1);
  if (weights.empty() || weights.back() == ':') return true;  // "sha256:" without a digest
  for (std::string_view word : {"unknown", "none", "null", "n/a", "?"})
    if (weights.size() == word.size() && strncasecmp(weights.data(), word.data(), word.size()) == 0)
      return true;
  return false;
}

}  // namespace

int identity_check(const identity_fields& id) noexcept {
  if (id.model.empty()) return fail(-EINVAL, "identity: the model has no name");
  if (!id.any_weights && says_nothing(id.weights))
    return fail(-EINVAL,
                "identity: weights '%.*s' tell no two sets of weights apart: give a fingerprint of "
                "them, such as the digest of their files, or say that any will do: "
                "allow_unknown_weights=True in Python, KVSHM_UNKNOWN_WEIGHTS in C",
                int(id.weights.size() < 80 ? id.weights.size() : 80), id.weights.data());
  if (!block_tokens_valid(id.block_tokens))
    return fail(-EINVAL, "identity: block_tokens is %u; expected 1, 2, 4 ... 1024",
                unsigned(id.block_tokens));
  const struct {
    const char* name;
    std::string_view text;
  } fields[] = {{"model", id.model},   {"weights", id.weights},   {"dtype", id.dtype},
                {"layout", id.layout}, {"parallel", id.parallel}, {"namespace", id.space}};
  for (auto [name, text] : fields) {
    if (text.size() >= identity_text_bytes)
      return fail(-ENAMETOOLONG, "identity: %s is longer than %zu bytes", name,
                  identity_text_bytes - 1);
    while (!text.empty()) {
      const uint32_t code = next_code_point(text);
      if (code == bad_utf8 || code == 0)
        return fail(-EINVAL, "identity: %s is not UTF-8, or contains NUL", name);
    }
  }
  if (identity_text(id, nullptr, 0) >= identity_text_bytes)
    return fail(-ENAMETOOLONG, "identity: longer than %zu bytes as JSON: shorten its fields",
                identity_text_bytes - 1);
  return 0;
}

void identity_derive(const identity_fields& id, uint8_t key[identity_key_bytes],
                     uint8_t fingerprint[fingerprint_bytes]) noexcept {
  digest k("kvshm.v1.ident", identity_key_bytes);
  encode(k, id, true);
  k.finish(key);
  digest f("kvshm.v1.finger", fingerprint_bytes);
  encode(f, id, false);
  f.finish(fingerprint);
  never_zero(fingerprint);
}

size_t identity_text(const identity_fields& id, char* buf, size_t cap) noexcept {
  json_line line(buf, cap);
  const auto pair = [&](std::string_view name, std::string_view value) {
    line.raw(name);
    line.text(value);
  };
  pair("{\"model\":", id.model);
  pair(",\"weights\":", id.weights);
  pair(",\"dtype\":", id.dtype);
  pair(",\"layout\":", id.layout);
  pair(",\"parallel\":", id.parallel);
  pair(",\"namespace\":", id.space);
  line.raw(",\"block_tokens\":");
  line.number(id.block_tokens);
  line.raw(",\"epoch\":");
  line.number(id.epoch);
  line.raw("}");
  if (line.length() < cap)
    buf[line.length()] = '\0';
  else if (cap > 0)
    buf[0] = '\0';
  return line.length();
}

}  // namespace kvshm
