// For compilers without libFuzzer: plays the inputs of the folders and files named, then changes
// them at random for so many seconds. The same targets, without a view of what they reach.
//
//   fuzz_TARGET [-seconds=N] [-seed=N] CORPUS...
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;
const Input* running = nullptr;

// What was running goes to a file, whatever ended the program.
void keep() {
  if (!running) return;
  const int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd >= 0 && write(fd, running->data(), running->size()) >= 0) close(fd);
  static const char line[] = "the input is in crash-input\n";
  if (write(2, line, sizeof line - 1) < 0) _exit(1);
}
void by_signal(int number) {
  keep();
  signal(number, SIG_DFL);
  raise(number);
}

void play(const Input& input) {
  // A copy of just that size: a read beyond its end is seen.
  const Input exact(input);
  running = &exact;
  alarm(10);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
  running = nullptr;
}

Input change(const std::vector<Input>& all, std::mt19937_64& r) {
  Input in = all[r() % all.size()];
  for (unsigned n = 1 + r() % 6; n > 0; n--) {
    const std::size_t at = in.empty() ? 0 : r() % in.size();
    switch (r() % 6) {
      case 0:
      case 1:
        if (!in.empty()) in[at] = std::uint8_t(r());
        break;
      case 2:
        if (!in.empty()) in[at] ^= std::uint8_t(1u << r() % 8);
        break;
      case 3:
        in.insert(in.begin() + std::ptrdiff_t(at), std::uint8_t(r()));
        break;
      case 4:
        if (!in.empty()) in.erase(in.begin() + std::ptrdiff_t(at));
        break;
      default: {  // the end of another one
        const Input& other = all[r() % all.size()];
        if (other.empty()) break;
        in.resize(at);
        in.insert(in.end(), other.begin() + std::ptrdiff_t(r() % other.size()), other.end());
      }
    }
  }
  if (in.size() > 1024) in.resize(1024);
  return in;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t seed = 1;
  std::vector<Input> all;
  for (int i = 1; i < argc; i++) {
    if (std::strncmp(argv[i], "-seconds=", 9) == 0) {
      seconds = std::atof(argv[i] + 9);
    } else if (std::strncmp(argv[i], "-seed=", 6) == 0) {
      seed = std::strtoull(argv[i] + 6, nullptr, 10);
    } else {
      auto take = [&](const std::filesystem::path& p) {
        std::ifstream file(p, std::ios::binary);
        all.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      };
      if (std::filesystem::is_directory(argv[i])) {
        for (const auto& entry : std::filesystem::directory_iterator(argv[i])) take(entry.path());
      } else {
        take(argv[i]);
      }
    }
  }
  if (all.empty()) {
    std::fprintf(stderr, "no inputs\n");
    return 1;
  }
  for (int s : {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(s, by_signal);
  std::uint64_t played = 0;
  for (const Input& in : all) play(in), played++;
  std::mt19937_64 r(seed);
  const auto end = std::chrono::system_clock::now() + std::chrono::duration<double>(seconds);
  while (seconds > 0 && std::chrono::system_clock::now() < end)
    for (int i = 0; i < 100; i++) play(change(all, r)), played++;
  std::printf("%llu inputs\n", (unsigned long long)played);
  return 0;
}
