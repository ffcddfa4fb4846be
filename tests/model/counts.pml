/* Concern: in-process counts.  Process A has NT threads over a private word [T | F | cnt]; process
 * B has one.  Both fill, join, upgrade, release, evict.  A fill membership counts like a hold; A's
 * bit in W changes only under T and only 0 <-> 1; F = "not known READY"; a join that finds A's bit
 * while cnt is 0 (a thread of A is allocating) is a miss; seq is compared on the private path too.
 * Bounds: 1 block, NT threads, OPS / BOPS operations, no kill (private memory dies with A).
 * Variant: LASTS every block is published READY_LAST
 * Controls: WORDONLY counts ignore fill membership (allocate, join, leave on W alone); NOSEQFAST
 *   private +1 without comparing seq; NOMISS join does not look for its own bit; BITFIRST the bit
 *   is cleared before T is taken                                                              */
#ifndef NT
#define NT 2
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef BOPS
#define BOPS 1
#endif
#define KILLS 0
#include "common.pml"
hidden byte private_zero; /* who allocates finds no count of its process */

#define A 1
#define B 2
#ifdef LASTS
#define AS LAST
#else
#define AS READY
#endif
#ifdef NOMISS
#define MISS false
#else
#define MISS (hold & A)
#endif
byte st, hold, seq = 1, told, arrived, slices, begun;
bool T, F;
byte cnt; /* T, F, cnt: private to A */

#define CLOSE(b) atomic { seq++ }; atomic { OWN(st, hold, b); st = FREE; hold = 0 }
#define QUIT(b) atomic { LEAVE(st, hold, b, ok) }; if :: ok -> CLOSE(b) :: else -> skip fi
#define ALLOCATE(b) \
    atomic { CLAIM_FREE(st, hold, b, ok) }; \
    if :: ok -> skip \
       :: else -> atomic { CLAIM_VICTIM(st, hold, b, ok) }; IF(!ok, goto next); \
                  atomic { seq++ }; atomic { OWN(st, hold, b); st = FILLING } fi
#define TELL atomic { arrived = 0; begun = 0; if :: slices = 1 :: slices = 3 fi }; \
    atomic { h = seq; told = h }
#define BEGIN atomic { ok = (slices & BIT(part)) && !(begun & BIT(part)); \
                       IF(ok, begun = begun | BIT(part)) }
#define ARRIVE(b) atomic { CHECK(held, st == FILLING && (hold & b) && seq == h) }; \
    atomic { arrived = arrived | BIT(part) }; \
    if :: (arrived & slices) == slices || IS_READY(st) -> skip :: goto leave fi
#define USE(b) atomic { CHECK(held, IS_READY(st) && (hold & b) && seq == h) }

proctype ThreadOfA() {
    byte ops, h, ok, part;
next:
    atomic { h = 0; ok = 0; if :: ops >= OPS -> goto out :: else -> ops++ fi };
    if :: part = 0; goto allocate :: part = 1; goto join :: part = 0; goto upgrade fi;

allocate:
    ALLOCATE(A);                                                     /* M:counts.1 CAS on W */
#ifndef WORDONLY
    atomic { !T -> CHECK(private_zero, cnt == 0); cnt = 1; F = true }; /* M:counts.2 count 1, F */
#endif
    TELL;                                                            /* M:counts.3 then tell */
    goto member;

join:
    atomic { h = told };
    IF(h == 0, goto next);
#ifdef WORDONLY
    atomic { JOIN(st, hold, A, ok) }; IF(!ok, goto next);
    atomic { ok = (seq == h) }; IF(!ok, goto leave);
#else
    atomic { !T -> if :: cnt > 0 && F -> T = true; ok = 1
                      :: cnt == 0 -> T = true; ok = 2
                      :: else -> ok = 0 fi };                        /* M:counts.4 take T */
    if
    :: ok == 0 -> goto next                                          /* READY: upgrade instead */
    :: ok == 1 ->
       atomic { ok = (st == FILLING && seq == h) };                  /* M:counts.5 W unchanged */
       atomic { T = false; IF(ok, cnt++) };
       IF(!ok, goto next)
    :: ok == 2 ->
       atomic { if :: MISS -> ok = 0 :: else -> JOIN(st, hold, A, ok) fi }; /* M:counts.6 */
       if :: !ok -> atomic { T = false }; goto next :: else -> skip fi;
       atomic { ok = (seq == h) };                                   /* M:counts.7 */
       if :: ok -> atomic { T = false; cnt = 1; F = true }
          :: else -> QUIT(A); atomic { T = false }; goto next fi
    fi;
#endif
member:
    if :: skip :: goto leave fi;
    BEGIN;
    IF(!ok, goto leave);
    ARRIVE(A);
#ifdef WORDONLY
    atomic { !T -> T = true };
    atomic { IF(st == FILLING && (hold & A), st = AS) };
    atomic { T = false; cnt++ };
#else
    atomic { !T -> T = true };                                      /* M:counts.8 publish under T */
    atomic { PUBLISH(st, hold, A, AS) };
    atomic { T = false; F = false };                                 /* M:counts.9 clear F */
#endif
    goto use;

upgrade:
    atomic { h = told };
    IF(h == 0, goto next);
    atomic { !T -> if :: cnt > 0 && !F -> cnt++; ok = 1            /* M:counts.10 no shared write */
                      :: cnt > 0 && F -> T = true; ok = 2
                      :: else -> T = true; ok = 3 fi };
    part = (ok == 1);
    if
    :: ok == 1 -> skip
    :: ok == 2 -> atomic { ok = IS_READY(st) };                      /* M:counts.11 look at W */
                  atomic { T = false; IF(ok, F = false; cnt++) }; IF(!ok, goto next)
    :: ok == 3 -> atomic { ACQUIRE(st, hold, A, ok) };               /* M:counts.12 0 -> T -> 1 */
                  atomic { T = false; cnt = ok }; IF(!ok, goto next)
    fi;
#ifdef NOSEQFAST
    IF(part, goto use);
#endif
    atomic { ok = (seq == h) };                                      /* M:counts.13 seq, always */
    IF(!ok, goto leave);
use:
    USE(A); USE(A);
leave:
#if defined(BITFIRST)
    atomic { ok = (cnt > 1); IF(ok, cnt--) };
    IF(ok, goto next);
    QUIT(A);
    atomic { IF(cnt > 0, cnt--); IF(cnt == 0, F = false) };
#elif defined(WORDONLY)
    atomic { ok = (IS_READY(st) && cnt > 0) };
    if :: !ok -> QUIT(A)
       :: else -> atomic { !T -> if :: cnt > 1 -> cnt--; ok = 0 :: else -> T = true; ok = 1 fi };
                  if :: ok -> QUIT(A); atomic { T = false; cnt = 0 } :: else -> skip fi fi;
#else
    atomic { !T -> if :: cnt > 1 -> cnt--; ok = 0 :: else -> T = true; ok = 1 fi };/* M:counts.14 */
    if :: ok -> QUIT(A); atomic { T = false; cnt = 0; F = false }    /* M:counts.15 1 -> T -> 0 */
       :: else -> skip fi;
#endif
    goto next;
out:
    atomic { fin++ }
}

proctype ProcessB() {
    byte ops, h, ok, part;
next:
    atomic { h = 0; ok = 0; if :: ops >= BOPS -> goto out :: else -> ops++ fi };
    if :: part = 0; goto allocate :: part = 1; goto join fi;
allocate:
    ALLOCATE(B);
    TELL;
    goto member;
join:
    atomic { h = told };
    IF(h == 0, goto next);
    atomic { JOIN(st, hold, B, ok) };
    IF(!ok, goto next);
    atomic { ok = (seq == h) };
    IF(!ok, goto leave);
member:
    if :: skip :: goto leave fi;
    BEGIN;
    IF(!ok, goto leave);
    ARRIVE(B);
    atomic { PUBLISH(st, hold, B, AS) };
    USE(B);
leave:
    QUIT(B);
    goto next;
out:
    atomic { fin++ }
}
init {
    byte i;
    atomic { i = 0; do :: i < NT -> run ThreadOfA(); i++ :: else -> break od; run ProcessB() };
    fin == NT + 1;
    CHECK(clean, !T && cnt == 0 && !F && hold == 0 && (st == FREE || st == READY))
}
