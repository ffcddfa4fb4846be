/* SPDX-License-Identifier: Apache-2.0
 *
 * refuse [setup=ERROR] [enter=ERROR] [register=ERROR] [direct=ERROR] [later=SECONDS | when=PATH]
 *        -- COMMAND ...
 *
 * Runs a command for which the kernel refuses calls of io_uring, or opens with O_DIRECT. ERROR is
 * EPERM, ENOSYS, EINVAL, ENOMEM or a number. later= and when=: not before so many seconds have gone,
 * or before the file exists. sysctl=2: with kernel.io_uring_disabled so, for the whole host, and as it
 * was afterwards. Exit status as the command's; 125: it could not be run so; 77: no such sysctl here. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "refusal.h"

static struct refusal rules[REFUSAL_MOST];
static unsigned nrules;
static double later = -1;
static const char* when;
static const char* sysctl_value;
static char sysctl_before[16];
static volatile sig_atomic_t child;

static int number_of(const char* error) {
  static const struct {
    const char* name;
    int value;
  } names[] = {{"EPERM", EPERM},   {"ENOSYS", ENOSYS}, {"EINVAL", EINVAL},
               {"ENOMEM", ENOMEM}, {"EACCES", EACCES}, {"EIO", EIO}};
  unsigned i;
  for (i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(error, names[i].name)) return names[i].value;
  return atoi(error);
}

static void add(long call, int argument, uint32_t bits, int error) {
  rules[nrules++] = (struct refusal){call, argument, bits, error};
}

static int option(const char* text) {
  const char* value = strchr(text, '=');
  const size_t n = value ? (size_t)(value - text) : 0;
  int error;
#define IS(name) (n == strlen(name) && !strncmp(text, name, n))
  if (!n) return 0;
  value++;
  if (IS("later")) return (later = atof(value)) >= 0;
  if (IS("when")) return (when = value, 1);
  if (IS("sysctl")) return (sysctl_value = value, 1);
  error = number_of(value);
  if (error <= 0 || nrules + 3 > REFUSAL_MOST) return 0;
  if (IS("setup")) return add(SYS_io_uring_setup, -1, 0, error), 1;
  if (IS("enter")) return add(SYS_io_uring_enter, -1, 0, error), 1;
  if (IS("register")) return add(SYS_io_uring_register, -1, 0, error), 1;
  if (!IS("direct")) return 0;
#undef IS
#ifdef SYS_open
  add(SYS_open, 1, REFUSAL_DIRECT, error);
#endif
  add(SYS_openat, 2, REFUSAL_DIRECT, error);
  return 1;
}

/* Writes it; before: what it was, if asked for. */
static int set_sysctl(const char* value, char* before, size_t n) {
  const char* path = "/proc/sys/kernel/io_uring_disabled";
  FILE* f = fopen(path, "r");
  int well;
  if (!f) return -1;
  well = !before || fgets(before, (int)n, f);
  fclose(f);
  if (!well || !(f = fopen(path, "w"))) return -1;
  well = fputs(value, f) >= 0;
  return fclose(f) == 0 && well ? 0 : -1;
}

static void hand_on(int signal) {
  if (child > 0) kill(child, signal);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The error of the rule that this call falls under: the first, as in the filter. */
static int error_of(const struct seccomp_data* d) {
  unsigned i;
  for (i = 0; i < nrules; i++)
    if (d->nr == rules[i].call &&
        (rules[i].argument < 0 || d->args[rules[i].argument] & rules[i].bits))
      return rules[i].error;
  return 0;
}

/* Each call waits for an answer. Until the command has ended: true, and its status. */
static int decide(int listener, double begin, int* status) {
  struct pollfd p = {.fd = listener, .events = POLLIN};
  struct seccomp_notif_sizes sizes;
  static struct seccomp_notif* asked; /* until the end: one of them each */
  static struct seccomp_notif_resp* answer;
  if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes)) return 0;
  asked = calloc(1, sizes.seccomp_notif + sizeof *asked);
  answer = calloc(1, sizes.seccomp_notif_resp + sizeof *answer);
  while (asked && answer) {
    int due;
    if (waitpid(child, status, WNOHANG) == child) return 1;
    if (poll(&p, 1, 100) < 0 && errno != EINTR) break;
    if (p.revents & (POLLHUP | POLLERR | POLLNVAL)) break; /* no process has the filter */
    if (!(p.revents & POLLIN)) continue;
    memset(asked, 0, sizes.seccomp_notif);
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, asked)) continue; /* its process was killed */
    due = when ? access(when, F_OK) == 0 : now() - begin >= later;
    memset(answer, 0, sizes.seccomp_notif_resp);
    answer->id = asked->id;
    if (due)
      answer->error = -error_of(&asked->data);
    else
      answer->flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, answer);
  }
  return 0;
}

static int send_descriptor(int to, int fd) {
  char byte = 'x', space[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr m = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  struct cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return sendmsg(to, &m, 0) == 1 ? 0 : -1;
}

static int receive_descriptor(int from) {
  int fd = -1;
  char byte, space[CMSG_SPACE(sizeof fd)] = {0};
  struct iovec data = {&byte, 1};
  struct msghdr m = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
  struct cmsghdr* c;
  if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1 || !(c = CMSG_FIRSTHDR(&m))) return -1;
  memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return fd;
}

static int run(char** command, int to) {
  struct refusal now_or_later[REFUSAL_MOST];
  unsigned i;
  int rc;
  memcpy(now_or_later, rules, sizeof rules);
  for (i = 0; to >= 0 && i < nrules; i++) now_or_later[i].error = 0;
  rc = !nrules ? 0
               : refuse_calls(now_or_later, nrules, to >= 0 ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0);
  if (rc < 0) return fprintf(stderr, "refuse: no filter: %s\n", strerror(-rc)), 125;
  if (to >= 0 && send_descriptor(to, rc)) return perror("refuse: listener"), 125;
  if (to >= 0) close(rc);
  execvp(command[0], command);
  return perror(command[0]), 125;
}

int main(int argc, char** argv) {
  int i, ends[2], listener, status;
  const double begin = now();
  (void)argc;
  for (i = 1; argv[i] && strcmp(argv[i], "--"); i++)
    if (!option(argv[i])) return fprintf(stderr, "refuse: %s?\n", argv[i]), 125;
  if (!argv[i] || !argv[i + 1] || !(nrules || sysctl_value) ||
      (sysctl_value && (later >= 0 || when)))
    return fprintf(stderr, "refuse setup=EPERM ... -- command\n"), 125;
  if (sysctl_value) {
    signal(SIGTERM, hand_on);
    signal(SIGINT, hand_on);
    if (set_sysctl(sysctl_value, sysctl_before, sizeof sysctl_before)) return 77;
    child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      return run(argv + i + 1, -1);
    }
    status = 125 << 8;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (set_sysctl(sysctl_before, NULL, 0))
      return perror("refuse: the sysctl is not restored"), 125;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  if (later < 0 && !when) return run(argv + i + 1, -1); /* becomes the command */

  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return perror("socketpair"), 125;
  signal(SIGTERM, hand_on);
  signal(SIGINT, hand_on);
  child = fork();
  if (child < 0) return perror("fork"), 125;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return run(argv + i + 1, ends[1]);
  }
  close(ends[1]);
  listener = receive_descriptor(ends[0]);
  if (listener < 0 || !decide(listener, begin, &status))
    while (waitpid(child, &status, 0) < 0)
      if (errno != EINTR) return 125;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
