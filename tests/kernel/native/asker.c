/* SPDX-License-Identifier: Apache-2.0 */
/* Opens an object afresh and tries something with one lock byte, perhaps as another user.
 *
 *   asker PATH r|w held|read|write BYTE [UID]
 *
 * Reports "held N", or "read ERRNO" / "write ERRNO" of the attempt; "error open ERRNO". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lock.h"

static void become(int uid) {
  if (setgid((gid_t)uid) || setuid((uid_t)uid)) fail("uid", errno);
}

int main(int count, char** args) {
  if (count < 5) fail("usage", EINVAL);
  const char* what = args[3];
  long long byte = atoll(args[4]);
  if (count > 5) become(atoi(args[5]));

  int fd = open_for_lock(args[1], (args[2][0] == 'w' ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) fail("open", -fd);
  if (!strcmp(what, "held"))
    report("held %d", byte_is_held(fd, byte));
  else if (!strcmp(what, "read"))
    report("read %d", lock_byte(fd, F_RDLCK, byte));
  else
    report("write %d", lock_byte(fd, F_WRLCK, byte));
  return 0;
}
