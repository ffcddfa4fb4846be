/* Concern: the free map is a hint - a bit a block, cleared before the claim, set after the close,
 * and a summary bit a region, dropped by who finds no bit there.  At rest no FREE block lacks its
 * bits, whoever died: scrub looks at each FREE word and at the summary of the regions that the dead
 * slot touched.  A bit too many is harmless (the claim fails).
 * Bounds: 1 block in 1 region, 2 slots, OPS operations each, KILLS kills (reapers too).
 * Controls: TIDY a failed claim clears the bit once more; NOSCRUBMAP scrub does not look at FREE
 *   words; NOSCRUBSUM nor at the summary; REGIONLATE the region bit is set after the map's bit is
 *   cleared (before the CAS); NOLOOKAGAIN the summary is dropped without a second look           */
#ifndef OPS
#define OPS 2
#endif
#ifndef KILLS
#define KILLS 2
#endif
#include "common.pml"
hidden byte hint; /* at the end: FREE means that both bits are set */

byte st, hold, reg[2];
bool map = true, sum = true;
#define MARK STEP(map = true); STEP(ok = sum); IF(!ok, STEP(sum = true))
#define CLOSE STEP(OWN(st, hold, ME); st = FREE; hold = 0); MARK
#ifdef NOLOOKAGAIN
#define SUMMARIZE STEP(sum = false)
#else
#define SUMMARIZE STEP(sum = false); STEP(ok = map); IF(ok, STEP(sum = true))
#endif

proctype Slot(byte p) {
    byte ops, ok, w;
next:
    atomic { ok = 0; w = 0; if :: ops >= OPS -> goto out :: else -> ops++ fi };
    STEP(ok = sum);                             /* M:freemap.1 a region with a bit */
    IF(!ok, goto next);
#ifdef REGIONLATE
    STEP(ok = map; map = false);
    IF(!ok, goto none);
    STEP(reg[p] = 1);
#else
    STEP(reg[p] = 1);                           /* M:freemap.2 region bit before the map's bit */
#ifdef TIDY
    STEP(ok = map);
#else
    STEP(ok = map; map = false);                /* M:freemap.3 test and clear */
#endif
    IF(!ok, goto none);
#endif
    STEP(CLAIM_FREE(st, hold, ME, ok));         /* M:freemap.4 the claim is the CAS on W */
#ifdef TIDY
    STEP(map = false);
#endif
    IF(!ok, goto none);
    STEP(LEAVE(st, hold, ME, ok));
    CLOSE;                                      /* M:freemap.5 FREE by store, then the bits */
    goto next;
none:
    SUMMARIZE;                                  /* M:freemap.6 drop it, then look again */
    goto next;
crashed:
    STEP(ok = reg[p]);
    IF(!ok, goto next);
    STEP(w = 0; IF(hold & ME, w = st));
    if :: w == FILLING -> STEP(LEAVE(st, hold, ME, ok)); CLOSE
       :: w == EVICTING -> CLOSE
       :: else -> skip fi;
#ifndef NOSCRUBMAP
    STEP(w = (st == FREE && !map));
    if :: w -> MARK :: else -> skip fi;        /* M:freemap.7 a hint that the dead one took along */
#endif
#ifndef NOSCRUBSUM
    STEP(ok = map);
    IF(ok, STEP(sum = true));                   /* M:freemap.8 and the summary */
#endif
    STEP(reg[p] = 0);                           /* M:freemap.9 region clean */
    goto next;
out:
    atomic { fin++ }
}
init {
    atomic { run Slot(0); run Slot(1) };
    fin == 2;
    CHECK(clean, st == FREE && hold == 0);
    CHECK(hint, map && sum)
}
