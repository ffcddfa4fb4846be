/* Concern: what "pending (id, seq)" may be read from.  A look-up sees a FILLING block of key A and
 * later joins by (id, seq); meanwhile the block may be closed and filled again with key B.
 * Keys are two halves (two 64-bit accesses): A = (1,1), B = (1,2); 0 is no key.
 * Bounds: 1 block, 3 fills, 2 look-ups, no kill (fill.pml has them).
 * Controls: NOZERO the old key stays in EVICTING; KEYFIRST key read before seq              */
#define KILLS 0
#include "common.pml"
hidden byte same_key; /* who has joined by (id, seq) writes into a fill of the key it asked for */

byte st, hold, seq = 1, lo, hi;
#ifdef NOZERO
#define ZERO skip
#else
#define ZERO atomic { lo = 0 }; atomic { hi = 0 }
#endif
#define CLOSE ZERO; atomic { seq++ }; atomic { st = FREE; hold = 0 }

proctype Owner() {
    byte n, k, ok;
    do
    :: n >= 3 -> break
    :: else -> n++;
       atomic { st == FREE -> st = FILLING; hold = hold | 1 };      /* M:pending.1 allocate */
       if :: k = 1 :: k = 2 fi;
       atomic { lo = 1 }; atomic { hi = k };                        /* M:pending.2 the key, torn */
       atomic { LEAVE(st, hold, 1, ok) };
       IF(ok, CLOSE)                                                /* M:pending.3 key = 0, seq++ */
    od
}
proctype Joiner() {
    byte n, h, ok, l;
    do
    :: n >= 2 -> break
    :: else -> n++;
       atomic { ok = (st == FILLING) };
#ifdef KEYFIRST
       atomic { l = lo }; atomic { ok = ok && l == 1 && hi == 1 }; atomic { h = seq };
#else
       atomic { h = seq };                                          /* M:pending.4 seq first */
       atomic { l = lo }; atomic { ok = ok && l == 1 && hi == 1 };  /* M:pending.5 then the key */
#endif
       if
       :: !ok -> skip
       :: else ->
          atomic { JOIN(st, hold, 2, ok) };                         /* M:pending.6 join */
          if
          :: !ok -> skip
          :: else ->
             atomic { ok = (seq == h) };                            /* M:pending.7 compare seq */
             atomic { IF(ok, CHECK(same_key, st == FILLING && lo == 1 && hi == 1)) };
             atomic { LEAVE(st, hold, 2, ok) };
             IF(ok, CLOSE)
          fi
       fi
    od
}
init { atomic { run Owner(); run Joiner() } }
