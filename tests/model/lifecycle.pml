/* Concern: the one-owner core - look-up, verify, allocate, evict, torn key write, insert, fill,
 * publish, release, scrub, reuse.  Both keys have one tag, so a look-up meets wrong blocks by tag
 * collision as well as by stale entries.  (The two-phase insert is in index.pml: one step here.)
 * Bounds: NB blocks, 2 index positions, 2 keys A = (1,1), B = (1,2), NP slots, OPS operations each.
 * Controls: TWOSTEP evict looks at the word, then stores; PUBFIRST publish before the bytes;
 *   NOVERIFY the reader skips the key check; NOERASE scrub leaves entries; INSFIRST insert before
 *   the key is complete                                                                       */
#ifndef NB
#define NB 1
#endif
#ifndef NP
#define NP 2
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef KILLS
#define KILLS 2
#endif
#define NE 2
#include "common.pml"

typedef Block { byte st; byte hold; byte lo; byte hi; byte data };
Block b[NB];
byte e[NE]; /* id + 1; the tag is the same for both keys */

#define MINE OWN(b[id].st, b[id].hold, ME)
#define FILLER CHECK(owner, b[id].st == FILLING && b[id].hold == ME)
#define ERASE STEP(MINE; IF(e[0] == id + 1, e[0] = 0)); STEP(MINE; IF(e[1] == id + 1, e[1] = 0))
#define ZERO_KEY STEP(MINE; b[id].lo = 0); STEP(MINE; b[id].hi = 0)
#define HAS(j) (e[j] != 0 && b[e[j] - 1].lo == 1 && b[e[j] - 1].hi == k)
#ifdef TWOSTEP
#define VICTIM STEP(ok = (b[i].st == READY && b[i].hold == 0)); \
    IF(ok, STEP(b[i].st = EVICTING; b[i].hold = ME))
#else
#define VICTIM STEP(CLAIM_VICTIM(b[i].st, b[i].hold, ME, ok))
#endif
#define INSERT STEP(FILLER; ok = 0; \
    if :: HAS(0) || HAS(1) -> skip \
       :: else -> if :: e[0] == 0 -> e[0] = id + 1; ok = 1 \
                     :: e[0] != 0 && e[1] == 0 -> e[1] = id + 1; ok = 1 \
                     :: else -> skip fi fi)
#define WRITE STEP(FILLER; b[id].data = 0); STEP(FILLER; b[id].data = k)

proctype Slot(byte p) {
    byte ops, i, id, k, ok, w;
next:
    atomic { i = 0; id = NONE; ok = 0; w = 0; if :: ops >= OPS -> goto out :: else -> ops++ fi };
    if :: k = 1 :: k = 2 fi;
lookup:
    do
    :: i >= NE -> break
    :: else ->
       STEP(id = NONE; IF(e[i] != 0, id = e[i] - 1));               /* M:core.1 scan */
       if
       :: id == NONE -> skip
       :: else ->
          STEP(ACQUIRE(b[id].st, b[id].hold, ME, ok));              /* M:core.2 acquire */
          if
          :: !ok -> skip
          :: else ->
#ifdef NOVERIFY
             goto use;
#endif
             STEP(ok = (b[id].lo == 1));                            /* M:core.3 the whole key */
             STEP(ok = ok && b[id].hi == k);
             if :: ok -> goto use :: else -> skip fi;
             STEP(RELEASE(b[id].st, b[id].hold, ME, ok))            /* M:core.4 a miss */
          fi
       fi;
       i++
    od;

    i = 0; id = NONE; /* allocate: free blocks first */
    do :: i >= NB || id != NONE -> break
       :: else -> STEP(CLAIM_FREE(b[i].st, b[i].hold, ME, ok)); IF(ok, id = i); i++ od;
    if :: id != NONE -> goto fill :: else -> i = 0 fi;
    do :: i >= NB || id != NONE -> break
       :: else -> VICTIM; IF(ok, id = i); i++ od;                   /* M:core.5 evict-claim */
    IF(id == NONE, goto next);
    ERASE;                                                          /* M:core.6 erase entries */
    ZERO_KEY;                                                       /* M:core.7 key = 0 */
    STEP(MINE; b[id].st = FILLING);                                 /* M:core.8 reuse */
fill:
    STEP(FILLER; b[id].lo = 1);                                     /* M:core.9 key, two stores */
#ifdef INSFIRST
    INSERT; w = ok;
    STEP(FILLER; b[id].hi = k);
    WRITE;
    IF(!w, goto close_filling);
    STEP(PUBLISH(b[id].st, b[id].hold, ME, READY));
#else
    STEP(FILLER; b[id].hi = k);
#ifdef PUBFIRST
    INSERT; IF(!ok, goto close_filling);
    STEP(PUBLISH(b[id].st, b[id].hold, ME, READY));
    STEP(b[id].data = 0); STEP(b[id].data = k);
#else
    WRITE;                                                          /* M:core.10 the bytes */
    INSERT; IF(!ok, goto close_filling);                            /* M:core.11 insert */
    STEP(PUBLISH(b[id].st, b[id].hold, ME, READY));                 /* M:core.12 publish */
#endif
#endif
use:
    STEP(CHECK(held, IS_READY(b[id].st) && (b[id].hold & ME));
         CHECK(bytes, b[id].lo == 1 && b[id].hi == k && b[id].data == k));
    STEP(CHECK(held, IS_READY(b[id].st) && (b[id].hold & ME));
         CHECK(bytes, b[id].lo == 1 && b[id].hi == k && b[id].data == k));
    STEP(RELEASE(b[id].st, b[id].hold, ME, ok));                    /* M:core.13 release */
    goto next;
close_filling: /* somebody else has the key: ours is closed */
    STEP(LEAVE(b[id].st, b[id].hold, ME, ok));
    ERASE;
    ZERO_KEY;
    STEP(MINE; b[id].st = FREE; b[id].hold = 0);                    /* M:core.14 close */
    goto next;

crashed:
    id = 0;
    do
    :: id >= NB -> break
    :: else ->
       STEP(w = FREE; IF(b[id].hold & ME, w = b[id].st));
       if :: IS_READY(w) || w == FILLING -> STEP(LEAVE(b[id].st, b[id].hold, ME, ok))/* M:core.15 */
          :: w == EVICTING -> ok = 1
          :: else -> ok = 0 fi;
       if
       :: ok ->
#ifndef NOERASE
          ERASE;                                                    /* M:core.16 close on behalf */
#endif
          ZERO_KEY;
          STEP(MINE; b[id].st = FREE; b[id].hold = 0)
       :: else -> skip
       fi;
       id++
    od;
    goto next;
out:
    atomic { fin++ }
}

init {
    byte i, k;
    atomic { i = 0; do :: i < NP -> run Slot(i); i++ :: else -> break od };
    fin == NP;
    atomic {
        i = 0;
        do
        :: i >= NB -> break
        :: else -> CHECK(clean, b[i].hold == 0 && (b[i].st == FREE || b[i].st == READY));
                   k = (e[0] == i + 1) + (e[1] == i + 1);
                   CHECK(unique, k == (b[i].st == READY));
                   i++
        od;
        CHECK(unique, !(e[0] != 0 && e[1] != 0 && b[e[0] - 1].hi == b[e[1] - 1].hi))
    }
}
