// SPDX-License-Identifier: Apache-2.0
// What all roles share: arguments, the dialogue with the driver, keys, figures.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>

#include "bench.hpp"

namespace bench {
namespace {

constexpr unsigned kIdleSeconds = 900;  // a driver that is stuck must not leave us behind

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

void die(const char* format, ...) {
  std::va_list list;
  va_start(list, format);
  std::fputs("kvshm_bench: ", stderr);
  std::vfprintf(stderr, format, list);
  std::fputc('\n', stderr);
  va_end(list);
  std::exit(1);
}

std::int64_t must(std::int64_t rc, const char* what) {
  if (rc < 0) die("%s: %s %s", what, kvshm_strerror(int(rc)), kvshm_last_error());
  return rc;
}

std::uint64_t now_ns() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return std::uint64_t(t.tv_sec) * 1000000000u + std::uint64_t(t.tv_nsec);
}

Args::Args(int argc, char** argv) {
  for (int i = 0; i < argc; i++) {
    const char* eq = std::strchr(argv[i], '=');
    if (!eq) die("expected name=value, got %s", argv[i]);
    values_[std::string(argv[i], std::size_t(eq - argv[i]))] = eq + 1;
  }
}

std::string Args::text(const char* name, const char* otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

std::uint64_t Args::number(const char* name, std::uint64_t otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
}

void Line::name(const char* text) {
  text_ += text_.empty() ? "{\"" : ", \"";
  text_ += text;
  text_ += "\": ";
}

Line& Line::add(const char* n, double value) {
  name(n);
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", value);
  text_ += std::isfinite(value) ? digits : "null";
  return *this;
}

Line& Line::add(const char* n, std::uint64_t value) {
  name(n);
  text_ += std::to_string(value);
  return *this;
}

Line& Line::add(const char* n, const std::string& value) {  // names and paths: nothing to escape
  name(n);
  text_ += '"';
  text_ += value;
  text_ += '"';
  return *this;
}

Line& Line::add(const char* n, const std::vector<std::uint64_t>& values) {
  name(n);
  text_ += '[';
  for (std::size_t i = 0; i < values.size(); i++)
    text_.append(i ? "," : "").append(std::to_string(values[i]));
  text_ += ']';
  return *this;
}

void Line::print() {
  std::cout << (text_.empty() ? "{" : text_) << "}" << std::endl;
  text_.clear();
}

int serve(Line& facts, const Round& round) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  facts.add("ready", std::uint64_t{1}).print();
  std::string line;
  for (;;) {
    alarm(kIdleSeconds);
    if (!std::getline(std::cin, line)) return 0;
    const std::size_t space = line.find(' ');
    Order order{line.substr(0, space), 0};
    if (space != line.npos) order.number = std::strtoull(line.c_str() + space, nullptr, 10);
    Line answer;
    round(order, answer);
    answer.print();
  }
}

void make_key(std::uint64_t seed, std::uint64_t i, std::uint8_t out[16]) {
  const std::uint64_t half[2] = {mix(mix(seed) + 2 * i), mix(mix(seed) + 2 * i + 1)};
  std::memcpy(out, half, 16);
}

std::vector<Key> make_keys(std::uint64_t seed, std::uint64_t from, std::uint64_t n) {
  std::vector<Key> keys(n);
  for (std::uint64_t i = 0; i < n; i++) make_key(seed, from + i, keys[i].bytes);
  return keys;
}

std::vector<std::uint32_t> shuffled(std::uint64_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  for (std::uint64_t i = n; i > 1; i--) std::swap(order[i - 1], order[mix(seed + i) % i]);
  return order;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return std::nan("");
  const std::size_t at = std::min(values.size() - 1, std::size_t(q * double(values.size())));
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(at), values.end());
  return values[at];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

void use_cpu(const Args& args) {
  const std::uint64_t cpu = args.number("cpu", CPU_SETSIZE);
  if (cpu >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("cannot stay on CPU %u", unsigned(cpu));
}

}  // namespace bench
