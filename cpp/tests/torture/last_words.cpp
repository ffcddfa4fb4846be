// SPDX-License-Identifier: Apache-2.0
#include "last_words.hpp"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "shared.hpp"

namespace torture {
namespace {

constexpr int kSignals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
constexpr int kFrames = 48;
constexpr std::size_t kStack = 64 << 10, kMost = 16 << 10;

alignas(64) char stacks[kMaxThreads][kStack];

// Safe in a signal handler, as all below it.
void say(const char* text) {
  std::size_t n = 0;
  while (text[n]) n++;
  if (write(STDERR_FILENO, text, n) < 0) return;
}

void say(long n) {
  char digits[24];
  char* p = digits + sizeof digits;
  *--p = 0;
  unsigned long rest = n < 0 ? 0ul - static_cast<unsigned long>(n) : static_cast<unsigned long>(n);
  do *--p = char('0' + rest % 10);
  while (rest /= 10);
  if (n < 0) *--p = '-';
  say(p);
}

void on_signal(int number, siginfo_t* info, void*) {
  const struct itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);  // no alarm ends it before it has spoken
  say("signal ");
  say(number);
  say(", code ");
  say(info->si_code);
  if (info->si_code <= 0) {  // kill, or the thread itself: abort
    say(", sent by process ");
    say(info->si_pid);
    say(info->si_pid == getpid() ? " (itself)" : " (not itself)");
  }
  say(", at:\n");
  void* frames[kFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kFrames), STDERR_FILENO);
  raise(number);  // whose action is the default one again
}

}  // namespace

LastWords::LastWords(unsigned places) {
  for (unsigned i = 0; i < places; i++) {
    files_.emplace_back(memfd_create("torture-words", MFD_CLOEXEC));
    if (!files_.back() || fcntl(files_.back().get(), F_SETFL, O_APPEND))
      throw std::runtime_error("no file for what a worker says");
  }
  setenv("LIBC_FATAL_STDERR_", "1", 1);  // older C libraries would say it to the terminal
  void* frame;
  backtrace(&frame, 1);  // it allocates the first time: here, not in a handler
}

void LastWords::clear(unsigned place) {
  if (ftruncate(files_[place].get(), 0)) throw std::runtime_error("cannot empty a worker's file");
}

std::string LastWords::of(unsigned place) const {
  struct stat st;
  if (fstat(files_[place].get(), &st) || st.st_size <= 0) return "";
  std::string text(std::size_t(st.st_size) < kMost ? std::size_t(st.st_size) : kMost, '\0');
  const ssize_t n = pread(files_[place].get(), text.data(), text.size(), 0);
  text.resize(n > 0 ? std::size_t(n) : 0);
  return text;
}

void LastWords::listen(unsigned place) const {
  dup2(files_[place].get(), STDERR_FILENO);
  struct sigaction act = {};
  act.sa_sigaction = on_signal;
  act.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const int s : kSignals) sigaction(s, &act, nullptr);
  spare_stack(0);
}

void spare_stack(unsigned thread) {
  stack_t s = {};
  s.ss_sp = stacks[thread % kMaxThreads];
  s.ss_size = kStack;
  sigaltstack(&s, nullptr);
}

}  // namespace torture
