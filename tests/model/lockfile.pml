/* Concern: where the life byte lives.  A cleaner may unlink a name and somebody creates it anew;
 * a second process attaches by name, finds slot 0 in use, probes its life byte, reaps it if free.
 * Default: the byte is on the arena's own inode, so that the lock and the words it guards are one
 * object: who opens the re-created name sees another arena with other words.
 * Bounds: 2 inodes of the name, 1 user, 1 reaper (twice), 1 cleaner.
 * Control: LOCKFILE the lock is on a file of its own that can be unlinked and created anew      */
#define KILLS 1
#include "common.pml"

byte name;             /* inode that the locked name leads to */
byte lock[2];          /* per inode: 1 = slot 0's life byte is held by the user */
byte st[2], hold[2];   /* the words of the arena with that inode */
#ifdef LOCKFILE
#define ARENA(i) 0     /* the arena stays; only the lock file is replaced */
#else
#define ARENA(i) (i)
#endif

active proctype User() {
    byte l, a;
    atomic { st[0] = READY; st[1] = READY };
    STEP(l = name; a = ARENA(name));                       /* M:life.1 open by name */
    STEP(IF(lock[l] != 0, goto out); lock[l] = 1);         /* M:life.2 lock the life byte */
    STEP(hold[a] = hold[a] | 1);
    STEP(CHECK(held, st[a] == READY && (hold[a] & 1)));
    STEP(CHECK(held, st[a] == READY && (hold[a] & 1)); hold[a] = hold[a] & ~1);
    STEP(lock[l] = 0);
    goto out;
crashed: lock[0] = 0; lock[1] = 0;                         /* the kernel drops the locks */
out: skip
}
active proctype Reaper() {
    byte n, l, a;
    do
    :: n >= 2 -> break
    :: else -> n++;
       atomic { l = name; a = ARENA(name) };
       if
       :: atomic { lock[l] == 0 -> lock[l] = 2 };          /* M:life.3 free: the owner is dead */
          atomic { IF(hold[a] & 1, hold[a] = hold[a] & ~1) };
          atomic { lock[l] = 0 }
       :: else -> skip
       fi
    od
}
active proctype Cleaner() { if :: name = 1 :: skip fi }
