// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shared.hpp"

namespace torture {
namespace {

constexpr char kUsage[] =
    "Worker processes do what engines do to one arena, and are killed with SIGKILL all the while.\n"
    "\n"
    "  --kills N          end after so many deaths (2000)\n"
    "  --seconds N        or after so many seconds (no limit)\n"
    "  --seed N           of all choices; scheduling is not repeated (from the clock)\n"
    "  --workers N        processes at once, 1 to 32 (8)\n"
    "  --threads N        of each worker, 1 or 2 (two in every tenth)\n"
    "  --round-kills N    deaths between two checks of the whole arena (120)\n"
    "  --shape NAME       one shape of arena, not all in turn\n"
    "  --control NAME     switch a wrong step on: violations must then be found\n"
    "  --fault NAME       a worker begins with abort, throw, stack or said: it must be reported\n"
    "  --require-steps    fail if nobody died at some step\n"
    "  --list             names of shapes, steps and controls\n"
    "  --quiet            no progress on stderr\n"
    "\n"
    "One JSON document on stdout. Exit status: 0; 1 for a violation or a step not hit; 2 if it\n"
    "could not be run. The arena of a violation is kept (not with --control, --fault).\n";

[[noreturn]] void usage(const char* what) {
  if (!what) {
    std::fputs(kUsage, stdout);
    std::exit(0);
  }
  std::fprintf(stderr, "torture: %s; --help says more\n", what);
  std::exit(2);
}

double number(const char* text, const char* option, double least, double most) {
  char* end = nullptr;
  const double v = std::strtod(text, &end);
  if (end == text || *end || v < least || v > most) {
    std::fprintf(stderr, "torture: %s %s: wanted %.0f to %.0f\n", option, text, least, most);
    std::exit(2);
  }
  return v;
}

}  // namespace

Options read_options(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; i++) {
    const char* name = argv[i];
    const auto is = [&](const char* option) { return std::strcmp(name, option) == 0; };
    const auto value = [&]() -> const char* {
      if (++i == argc) usage((std::string(name) + " wants a value").c_str());
      return argv[i];
    };
    if (is("--kills")) {
      o.kills = std::uint64_t(number(value(), name, 1, 1e12));
    } else if (is("--seconds")) {
      o.seconds = number(value(), name, 0, 1e7);
    } else if (is("--seed")) {
      o.seed = std::strtoull(value(), nullptr, 0);
    } else if (is("--workers")) {
      o.workers = unsigned(number(value(), name, 1, 32));
    } else if (is("--threads")) {
      o.threads = unsigned(number(value(), name, 1, kMaxThreads));
    } else if (is("--round-kills")) {
      o.round_kills = unsigned(number(value(), name, 1, 1e6));
    } else if (is("--shape")) {
      o.shape = value();
    } else if (is("--control")) {
      o.control = value();
    } else if (is("--fault")) {
      o.fault = value();
    } else if (is("--require-steps")) {
      o.require_steps = true;
    } else if (is("--list")) {
      o.list = true;
    } else if (is("--quiet")) {
      o.progress = false;
    } else {
      usage(is("--help") || is("-h") ? nullptr : (std::string(name) + " is no option").c_str());
    }
  }
  return o;
}

}  // namespace torture
