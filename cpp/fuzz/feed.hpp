// What a target reads from its input. Past the end everything is 0, so every input is a whole one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace kvshm_fuzz {

class Feed {
 public:
  Feed(const std::uint8_t* p, std::size_t n) : p_(p), end_(p + n) {}
  bool more() const { return p_ != end_; }
  std::size_t left() const { return std::size_t(end_ - p_); }
  std::uint8_t byte() { return p_ == end_ ? 0 : *p_++; }
  std::uint16_t two() {
    const unsigned low = byte();
    return std::uint16_t(low | unsigned(byte()) << 8);
  }
  void bytes(void* to, std::size_t n) {
    const std::size_t here = n < left() ? n : left();
    if (here) std::memcpy(to, p_, here);
    if (n > here) std::memset(static_cast<char*>(to) + here, 0, n - here);
    p_ += here;
  }
  std::uint64_t number() {
    std::uint64_t v;
    bytes(&v, sizeof v);
    return v;
  }
  unsigned below(unsigned n) { return n ? byte() % n : 0; }
  bool one_in(unsigned n) { return below(n) == n - 1; }  // 0, the end of the input, says no
  // A number as callers, and damaged memory, have it: an edge, a small one, a power, or anything.
  std::uint64_t odd() {
    static constexpr std::uint64_t edges[] = {
        0,          1,           2,          31,         32,         33,         63,
        64,         65,          95,         96,         97,         127,        128,
        255,        256,         1023,       4095,       4096,       8191,       8192,
        0x7ffffff,  0x7fffffff,  0x80000000, 0xfffffff0, 0xfffffffe, 0xffffffff, 0x100000000,
        ~0ull >> 1, ~0ull << 63, ~0ull - 1,  ~0ull};
    const unsigned how = byte();
    switch (how >> 6) {
      case 0:
        return how & 63;
      case 1:
        return edges[(how & 63) % (sizeof edges / sizeof edges[0])];
      case 2:
        return std::uint64_t{1} << (how & 63);
      default:
        return number();
    }
  }
  std::string text(std::size_t most) {
    std::size_t n = byte();
    if (n > most) n = most;
    std::string s(n, '\0');
    if (n) bytes(s.data(), n);
    return s;
  }

 private:
  const std::uint8_t* p_;
  const std::uint8_t* end_;
};

// Ends the program as a finding, with a line that says which promise was broken.
[[noreturn]] void found(const char* what, long long a = 0, long long b = 0);

}  // namespace kvshm_fuzz
