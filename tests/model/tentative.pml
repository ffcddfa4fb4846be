/* Concern: a tentative entry whose inserter dies while others share its fill.
 * A member may publish only what is ANNOUNCED, which is set after the commit; so no block becomes
 * READY while its entry is tentative, and the reaper clears the dead one's tentative entries where
 * it finds the word FILLING, before it clears the bit.
 * Bounds: 1 block, 1 entry, 1 allocator (kill before every step; its reaper too), 1 member.
 * Variants: TELLAFTER members are told after the commit, then no clearing is needed;
 *   LATE no announce: the allocator inserts at register, members cannot publish;
 *   NOGATE a member may publish at any time, ALLSTATES the reaper clears whatever W is: enough, too
 * Controls: LEAVEONLY the reaper clears the bit only; NOGATE without ALLSTATES              */
#ifndef KILLS
#define KILLS 2
#endif
#include "common.pml"
#define EMPTY 0
#define TENTATIVE 1
#define COMMITTED 2
hidden byte no_tentative; /* no tentative entry outlives its inserter */

byte st = FILLING, hold = 1, ent, told;
bool announced;
#ifdef NOGATE
#define GATE true
#else
#define GATE announced
#endif
#define CLOSE STEP(OWN(st, hold, 1); ent = EMPTY); STEP(OWN(st, hold, 1); st = FREE; hold = 0)

active proctype Allocator() {
    byte ok, p;
#ifdef LATE
    STEP(told = 1);
    STEP(ok = 1);                                                 /* its slice */
#elif !defined(TELLAFTER)
    if :: STEP(told = 1) :: skip fi;
#endif
    STEP(ent = TENTATIVE);                                        /* M:tentative.1 */
    STEP(ent = COMMITTED);                                        /* M:tentative.2 */
    STEP(told = 1; announced = true);                     /* M:tentative.3 ANNOUNCED, after it */
    STEP(LEAVE(st, hold, 1, ok));
    IF(ok, CLOSE);
    goto out;
crashed:
    STEP(ok = 0; IF(hold & 1, ok = st));
    IF(ok == 0, goto out);
#if defined(ALLSTATES)
    STEP(IF(ent == TENTATIVE, ent = EMPTY));
#elif !defined(LEAVEONLY)
    if :: ok == FILLING -> STEP(IF(ent == TENTATIVE, ent = EMPTY)) :: else -> skip fi;/* M:tentative.4 */
#endif
    if
    :: ok == EVICTING -> CLOSE
    :: else -> STEP(LEAVE(st, hold, 1, ok)); IF(ok, CLOSE)        /* M:tentative.5 then the bit */
    fi;
    CHECK(no_tentative, ent != TENTATIVE); /* I12: its filler is gone */
out:
    atomic { fin++ }
}
active proctype Member() {
    byte ok;
    if :: told == 1 -> skip :: fin == 1 -> goto out fi;
    atomic { JOIN(st, hold, 2, ok) };
    IF(!ok, goto out);
    if
    :: atomic { IF(GATE, PUBLISH(st, hold, 2, READY)) } /* M:tentative.6 its slice was the last */
    :: skip
    fi;
    atomic { LEAVE(st, hold, 2, ok) };
    if :: ok -> atomic { ent = EMPTY }; atomic { st = FREE; hold = 0 } :: else -> skip fi;
out:
    atomic { fin++ }
}
init {
    fin == 2;
    CHECK(clean, hold == 0 && (st == FREE || st == READY));
    CHECK(no_tentative, ent != TENTATIVE)
}
