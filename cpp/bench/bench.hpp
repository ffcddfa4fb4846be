// SPDX-License-Identifier: Apache-2.0
// The measuring program: one process per role, driven over its standard input by
// tools/benchmarks. It uses the public C API only.
//
// A role sets itself up, prints one line {"ready": true, ...}, then does one round for each line that
// it is given and answers with one JSON line; at the end of its input it ends. The driver thus
// interleaves the rounds of several roles. Whatever goes wrong ends the process with a line on
// stderr.
#pragma once
#include <kvshm.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace bench {

[[noreturn]] void die(const char* format, ...) __attribute__((format(printf, 1, 2)));
// rc >= 0, or the end of the process with kvshm's own words.
std::int64_t must(std::int64_t rc, const char* what);

std::uint64_t now_ns();

class Args {  // name=value ...
 public:
  Args(int argc, char** argv);
  std::string text(const char* name, const char* otherwise = "") const;
  std::uint64_t number(const char* name, std::uint64_t otherwise = 0) const;

 private:
  std::map<std::string, std::string> values_;
};

class Line {  // one JSON object
 public:
  Line& add(const char* name, double value);
  Line& add(const char* name, std::uint64_t value);
  Line& add(const char* name, const std::string& value);
  Line& add(const char* name, const std::vector<std::uint64_t>& values);
  void print();

 private:
  void name(const char* text);
  std::string text_;
};

struct Order {  // "word number" from the driver
  std::string word;
  std::uint64_t number = 0;
};
using Round = std::function<void(const Order&, Line&)>;
int serve(Line& facts, const Round& round);

// ---- keys ---------------------------------------------------------------------------------------

// Key i of the series `seed`: uniform, like those that a hash gives.
void make_key(std::uint64_t seed, std::uint64_t i, std::uint8_t out[16]);

struct alignas(16) Key {
  std::uint8_t bytes[16];
  const kvshm_key* api() const { return &bytes; }
};
std::vector<Key> make_keys(std::uint64_t seed, std::uint64_t from, std::uint64_t n);
std::vector<std::uint32_t> shuffled(std::uint64_t n, std::uint64_t seed);

// ---- figures ------------------------------------------------------------------------------------

double median(std::vector<double> values);
double quantile(std::vector<double> values, double q);
void use_cpu(const Args& args);  // cpu=N: stay there

// ---- roles: each in a file of its name ----------------------------------------------------------

int store(const Args&);
int point(const Args&);
int match(const Args&);
int copy(const Args&);
int paged(const Args&);
int read_in_place(const Args&);
int insert(const Args&);
int keys(const Args&);
int attach(const Args&);
int worker(const Args&);
int victim(const Args&);
int reaper(const Args&);
int sizes(const Args&);
int map_alone(const Args&);
int map_shared(const Args&);
int redis(const Args&);
int latency(const Args&);
int disk(const Args&);

}  // namespace bench
