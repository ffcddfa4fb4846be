/* Concern: duplicates and no-cache.  Block 0 is the primary of key 1 (READY, indexed; it may be
 * evicted and reused for key 2 or 1); block 1 is a duplicate that register makes and that a weak
 * handle upgrades.  "Close at the last release" is in the word: READY_LAST.
 * Bounds: 2 blocks, NP slots, OPS operations each, KILLS kills (reapers too).
 * Controls: FLAGS no-cache in a byte beside the word; NOPKEY upgrade does not compare the
 *   primary's key; REAPCLEAR reap only clears a READY_LAST bit; RAW the duplicate's last release
 *   does not go through EVICTING; PRIMLATE cold.primary is read after the duplicate's release  */
#ifndef NP
#define NP 2
#endif
#ifndef OPS
#define OPS 2
#endif
#include "common.pml"
hidden byte pair;     /* a holder of the duplicate holds a primary with the same key */
hidden byte no_cache; /* at rest a READY block is one that may be cached */

byte st[2], hold[2], key[2], seq[2], prim = NONE; /* prim: cold.primary of block 1 */
bool ent0 = true, flag[2];                        /* flag: the byte beside the word (FLAGS) */
bool set_nc;   /* ghost: no-cache is the last that was said of block 0's present life */
byte told;     /* weak handle of the duplicate: its seq */

#ifdef FLAGS
#define NOCACHE(x) flag[0] = x
#define IS_LAST(i) flag[i]
#define DROP(i, again) again: STEP(h = hold[i]); STEP(f = flag[i]); \
    STEP(if :: hold[i] == h && h == ME && f -> st[i] = EVICTING; w = 1 \
            :: hold[i] == h && !(h == ME && f) -> hold[i] = h & ~ME; w = 0 \
            :: else -> w = 2 fi); IF(w == 2, goto again)
#else
#define NOCACHE(x) st[0] = (x -> LAST : READY)
#define DROP(i, again) STEP(RELEASE(st[i], hold[i], ME, w))
#endif
#define CLOSE(i) STEP(OWN(st[i], hold[i], ME); IF(i == 0, ent0 = false)); \
    STEP(key[i] = 0; seq[i]++); \
    STEP(st[i] = FREE; hold[i] = 0; flag[i] = false; IF(i == 0, set_nc = false))
#define DROP_CLOSE(i, again) DROP(i, again); if :: w == 1 -> CLOSE(i) :: else -> skip fi

proctype Slot(byte p) {
    byte ops, w, h, r;
    bool f;
next:
    atomic { w = 0; h = 0; f = false; r = 0; if :: ops >= OPS -> goto out :: else -> ops++ fi };
    if :: goto register :: goto upgrade :: goto nocache :: goto evict fi;

register: /* a second block of key 1 */
    STEP(CLAIM_FREE(st[1], hold[1], ME, w));
    IF(!w, goto next);
    STEP(key[1] = 1; flag[1] = false; prim = NONE);
    STEP(ACQUIRE(st[0], hold[0], ME, w));                    /* M:dup.1 acquire the present block */
    if :: !w -> goto no_primary :: else -> skip fi;
    STEP(w = (key[0] == 1));                                 /* M:dup.2 compare its key */
    if :: !w -> DROP_CLOSE(0, d1); goto no_primary :: else -> skip fi;
    STEP(prim = 0; flag[1] = true);                          /* M:dup.3 DUPLICATE, cold.primary */
#ifdef FLAGS
    STEP(PUBLISH(st[1], hold[1], ME, READY); told = seq[1]);
#else
    STEP(PUBLISH(st[1], hold[1], ME, LAST); told = seq[1]);  /* M:dup.4 publish READY_LAST */
#endif
both:
    STEP(CHECK(pair, IS_READY(st[1]) && (hold[1] & ME) && key[1] == 1
                     && IS_READY(st[0]) && (hold[0] & ME) && key[0] == 1));
#ifndef PRIMLATE
    STEP(r = prim);                                          /* M:dup.5 read it while held */
#endif
#ifdef RAW
    STEP(h = (hold[1] == ME)); STEP(hold[1] = hold[1] & ~ME);
    if :: h -> STEP(st[1] = FREE; hold[1] = 0; seq[1]++) :: else -> skip fi;
#else
    DROP_CLOSE(1, d2);                                    /* M:dup.6 raw release of the duplicate */
#endif
#ifdef PRIMLATE
    STEP(r = prim);
#endif
    CHECK(pair, r == 0);
    DROP_CLOSE(0, d3);                                      /* M:dup.7 raw release of the primary */
    goto next;
no_primary: /* not our concern here: given up */
    STEP(LEAVE(st[1], hold[1], ME, w));
    CLOSE(1);
    goto next;

upgrade:
    STEP(h = told);
    STEP(ACQUIRE(st[1], hold[1], ME, w));                    /* M:dup.8 acquire the duplicate */
    IF(!w, goto next);
    STEP(w = (seq[1] == h));                                 /* M:dup.9 compare seq */
    if :: !w -> DROP_CLOSE(1, d4); goto next :: else -> skip fi;
    STEP(ACQUIRE(st[0], hold[0], ME, w));                    /* M:dup.10 acquire the primary */
#ifndef NOPKEY
    if :: w -> STEP(w = (key[0] == key[1]));                 /* M:dup.11 compare its key */
               if :: !w -> DROP_CLOSE(0, d5); w = 0 :: else -> skip fi
       :: else -> skip fi;
#endif
    if :: !w -> DROP_CLOSE(1, d6); goto next :: else -> skip fi;
    goto both;

nocache:
    STEP(ACQUIRE(st[0], hold[0], ME, w));
    IF(!w, goto next);
    if :: STEP(NOCACHE(true); set_nc = true)                 /* M:dup.12 READY <-> READY_LAST */
       :: STEP(NOCACHE(false); set_nc = false)
       :: skip fi;
    DROP_CLOSE(0, d7);
    goto next;

evict: /* and reuse, or a fresh fill */
    STEP(CLAIM_FREE(st[0], hold[0], ME, w));
    if :: w -> goto fill :: else -> skip fi;
    STEP(CLAIM_VICTIM(st[0], hold[0], ME, w));
    IF(!w, goto next);
    STEP(OWN(st[0], hold[0], ME); ent0 = false);
    STEP(key[0] = 0; seq[0]++);
    STEP(st[0] = FILLING);
fill:
    STEP(flag[0] = false; set_nc = false);
    if :: STEP(key[0] = 2) :: STEP(key[0] = 1) fi;
    STEP(ent0 = true);
    STEP(PUBLISH(st[0], hold[0], ME, READY));
    DROP_CLOSE(0, d8);
    goto next;

crashed: /* reap on behalf: as release, leave or close */
    r = 0;
    do
    :: r >= 2 -> break
    :: else ->
       STEP(w = FREE; IF(hold[r] & ME, w = st[r]));
#ifdef REAPCLEAR
       if :: IS_READY(w) -> STEP(hold[r] = hold[r] & ~ME); w = 0
#else
       if :: IS_READY(w) -> DROP(r, d9)                      /* M:dup.13 release on behalf */
#endif
          :: w == FILLING -> STEP(LEAVE(st[r], hold[r], ME, w))
          :: w == EVICTING -> w = 1
          :: else -> w = 0 fi;
       if :: w == 1 -> CLOSE(r) :: else -> skip fi;
       r++
    od;
    goto next;
out:
    atomic { fin++ }
}
init {
    byte i;
    atomic { st[0] = READY; key[0] = 1;
             i = 0; do :: i < NP -> run Slot(i); i++ :: else -> break od };
    fin == NP;
    CHECK(clean, hold[0] == 0 && hold[1] == 0);
    CHECK(clean, st[1] == FREE && (st[0] == READY || st[0] == FREE));
    if :: st[0] == READY -> CHECK(no_cache, ent0 && !set_nc)
       :: else -> CHECK(unique, !ent0) fi
}
