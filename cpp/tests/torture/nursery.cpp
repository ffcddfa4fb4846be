// SPDX-License-Identifier: Apache-2.0
#include "nursery.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <stdexcept>

#include "ops.hpp"
#include "worker.hpp"

namespace torture {

Nursery::Nursery(Shared& shared, const Options& options)
    : shared_(shared), pids_(options.workers, 0), last_words_(options.workers) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);  // collect waits for it
}

void Nursery::start(unsigned place, const Plan& plan, const Shape& shape, const std::string& name) {
  Record& r = shared_.workers[place];
  r.plan = plan;
  for (auto& a : r.acked) a = 0;
  for (auto& t : r.transfers) t = 0;
  r.states = kUnseen;
  r.slot = KVSHM_SLOTS;
  r.step = kNoStep;
  r.op = kOpening;
  r.way = std::uint8_t(Way::kOutside);
  for (Track& t : r.tracks) t.op = kOpening, t.lines = 0;
  last_words_.clear(place);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) throw std::runtime_error("cannot fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // none outlives the driver
    if (getppid() != parent) _exit(4);
    last_words_.listen(place);
    live(shared_, r, shape, name);
  }
  pids_[place] = pid;
}

void Nursery::count(unsigned place, int status) {
  const Record& r = shared_.workers[place];
  const bool in_order = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  const std::string said = last_words_.of(place);
  if ((!in_order && !killed) || !said.empty()) {
    std::string ops = op_name(r.tracks[0].op);  // which thread it was stands in what it said
    if (r.plan.threads > 1) ops += std::string(" beside ") + op_name(r.tracks[1].op);
    violation(shared_, "a worker ended with %s %d in %s: %s",
              WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), ops.c_str(),
              said.empty() ? "it said nothing" : said.substr(0, said.find('\n')).c_str());
    if (!said.empty()) words.push_back(said);
    return;
  }
  if (in_order) {
    deaths.ended++;
    return;
  }
  deaths.kills++;
  deaths.by_op[r.op % 64]++;
  deaths.by_way[r.way % 4]++;
  for (unsigned i = 0; i < kStateBits; i++) deaths.by_state[i] += r.states >> i & 1;
  if (Way(r.way.load()) == Way::kStep && r.step < kMaxSteps) deaths.by_step[r.step]++;
}

std::vector<unsigned> Nursery::collect(int limit_ms) {
  std::vector<unsigned> free;
  for (int round = 0; round < 2 && free.empty(); round++) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
      for (unsigned i = 0; i < pids_.size(); i++)
        if (pids_[i] == pid) {
          pids_[i] = 0;
          count(i, status);
          free.push_back(i);
        }
    if (!free.empty() || round || limit_ms <= 0) break;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const struct timespec t = {limit_ms / 1000, limit_ms % 1000 * 1000000L};
    sigtimedwait(&child, nullptr, &t);
  }
  return free;
}

void Nursery::kill(unsigned place) {
  if (pids_[place] > 0) ::kill(pids_[place], SIGKILL);
}

void Nursery::kill_all() {
  for (unsigned i = 0; i < pids_.size(); i++) kill(i);
  while (living()) collect(1000);
}

void Nursery::stop_all() {
  for (const pid_t pid : pids_)
    if (pid > 0) ::kill(pid, SIGSTOP);
}

unsigned Nursery::living() const {
  unsigned n = 0;
  for (const pid_t pid : pids_) n += pid > 0;
  return n;
}

}  // namespace torture
