/* Concern: all or nothing with roll-back.  Two allocators want both of blocks 0 and 1; a registrar
 * has private block 2 with key 1 and matches or registers it meanwhile.  Free blocks are claimed
 * first, then victims with entries untouched; who falls short gives all back, reaps the dead, takes
 * the allocation byte and tries once more.
 * Bounds: 3 blocks, 3 entries, 3 slots, KILLS kills (of allocators, registrar and the reapers).
 * Variants: STARTFREE blocks 0, 1 are FREE (else READY{}, indexed); SOLO no registrar, then without
 *   a kill one of the two must win; NORETRY no second try (a control with SOLO)
 * Controls: ERASEEARLY entries erased before all n are claimed; IGNEVICT the registrar clears the
 *   entry of an EVICTING block                                                                */
#include "common.pml"
hidden byte one_wins; /* of two contenders at least one gets its blocks */

byte st[3], hold[3], key[3], seq[3];
byte ek[3], ei[3];                       /* entry j: key (0 = empty), id; an insert is one step */
byte lock = NONE, granted;               /* lock: the allocation byte */
bool dead[3], reaped[3], private2;       /* reaped: the dead slot's life byte, held by its reaper */

#define HAS(k) (ek[0] == k || ek[1] == k || ek[2] == k)
#define ID(k) (ek[0] == k -> ei[0] : (ek[1] == k -> ei[1] : ei[2]))
#define CLR(j, i) if :: ek[j] && ei[j] == i -> ek[j] = 0 :: else -> skip fi
#define ERASE(i) CLR(0, i); CLR(1, i); CLR(2, i)
#define MINE(i) OWN(st[i], hold[i], ME)
#define FREED(i) st[i] = FREE; hold[i] = 0

/* reap of slot q, step by step; M is the step macro (who dies in it differs) */
#define REAP(M, q) i = 0; \
    do :: i >= 3 -> break \
       :: else -> \
          M(w = FREE; IF(hold[i] & BIT(q), w = st[i])); \
          if :: w == FREE -> skip \
             :: else -> \
                if :: w != EVICTING -> M(LEAVE(st[i], hold[i], BIT(q), w)) :: else -> w = 1 fi; \
                if :: w -> M(OWN(st[i], hold[i], BIT(q)); ERASE(i)); \
                           M(seq[i]++); M(OWN(st[i], hold[i], BIT(q)); FREED(i)) \
                   :: else -> skip fi fi; \
          i++ od
/* a reaper that dies drops the dead slot's life byte, and somebody goes on from the start */
#define RSTEP(...) atomic { if :: kills < KILLS -> kills++; reaped[p] = false; goto scrub \
                               :: true -> skip fi; __VA_ARGS__ }
#define CLAIMED(i) ((mine >> (2 * (i))) & 3) /* 0 no, 1 was free, 2 was a victim */

proctype Allocator(byte p) {
    byte i, w, try, mine, ok;
    bool life;
again:
    mine = 0; i = 0;
    do :: i >= 2 -> break /* free blocks */
       :: else -> STEP(CLAIM_FREE(st[i], hold[i], ME, ok));        /* M:aon.1 */
                  IF(ok, mine = mine | (1 << (2 * i))); i++ od;
    i = 0;
    do :: i >= 2 || (CLAIMED(0) && CLAIMED(1)) -> break /* victims, entries untouched */
       :: CLAIMED(i) && i < 2 -> i++
       :: else -> STEP(CLAIM_VICTIM(st[i], hold[i], ME, ok));      /* M:aon.2 */
                  if :: ok -> mine = mine | (2 << (2 * i));
#ifdef ERASEEARLY
                              STEP(ERASE(i))
#endif
                     :: else -> skip fi; i++ od;
    if :: CLAIMED(0) && CLAIMED(1) -> goto won :: else -> skip fi;

    i = 0; /* give back */
    do :: i >= 2 -> break
       :: else ->
          if :: CLAIMED(i) == 2 -> STEP(MINE(i); st[i] = READY; hold[i] = 0) /* M:aon.3 same life */
             :: CLAIMED(i) == 1 -> STEP(LEAVE(st[i], hold[i], ME, ok));      /* M:aon.4 close */
                                   STEP(seq[i]++); STEP(MINE(i); FREED(i))
             :: else -> skip fi;
          i++ od;
#ifdef NORETRY
    goto done;
#endif
    if :: try -> goto done :: else -> try = 1 fi;                  /* M:aon.7 whatever counts say */
    atomic { w = 0; IF(dead[1 - p] && !reaped[1 - p], reaped[1 - p] = true; life = true) };
    if :: life -> REAP(STEP, 1 - p);                               /* M:aon.6 reap the dead */
                  atomic { reaped[1 - p] = false; life = false }
       :: else -> skip fi;
    if :: KILL :: atomic { lock == NONE -> lock = p } fi;          /* M:aon.5 the allocation byte */
    goto again;
won:
    granted++;
#ifndef ERASEEARLY
    i = 0;
    do :: i >= 2 -> break
       :: else -> if :: CLAIMED(i) == 2 -> STEP(MINE(i); ERASE(i)); STEP(seq[i]++); /* M:aon.8 */
                                           STEP(MINE(i); st[i] = FILLING)           /* M:aon.9 */
                     :: else -> skip fi; i++ od;
#else
    i = 0;
    do :: i >= 2 -> break
       :: else -> if :: CLAIMED(i) == 2 -> STEP(seq[i]++); STEP(MINE(i); st[i] = FILLING)
                     :: else -> skip fi; i++ od;
#endif
    if :: KILL :: atomic { IF(lock == p, lock = NONE) } fi;
    i = 0; /* this model's callers abort */
    do :: i >= 2 -> break
       :: else -> STEP(LEAVE(st[i], hold[i], ME, ok)); STEP(seq[i]++);
                  STEP(MINE(i); FREED(i)); i++ od;
done:
    atomic { IF(lock == p, lock = NONE); fin++ };
    goto out;
crashed: /* the kernel drops its locks; some survivor reaps it, some time */
    atomic { dead[p] = true; IF(lock == p, lock = NONE);
             IF(life, reaped[1 - p] = false; life = false) };
scrub:
    atomic { !reaped[p] -> reaped[p] = true };
    REAP(RSTEP, p);
    atomic { reaped[p] = false; fin++ };
out: skip
}

proctype Registrar(byte p) {
    byte i, w, o, tries, s;
look:
    STEP(o = NONE; IF(HAS(1), o = ID(1)));
    if :: o == NONE -> goto insert :: else -> skip fi;
    STEP(s = seq[o]; ACQUIRE(st[o], hold[o], ME, w));
    if :: w -> STEP(CHECK(held, IS_READY(st[o]) && seq[o] == s && key[o] == 1));
               STEP(RELEASE(st[o], hold[o], ME, w));
               goto abort
       :: else -> skip fi;
insert:
#ifdef IGNEVICT
    STEP(o = NONE; IF(HAS(1) && st[ID(1)] == EVICTING, o = ID(1)));
    IF(o != NONE, STEP(IF(HAS(1) && ID(1) == o, ERASE(o))));
#endif
    STEP(w = !HAS(1);
         if :: w && ek[0] == 0 -> ek[0] = 1; ei[0] = 2
            :: w && ek[0] && ek[1] == 0 -> ek[1] = 1; ei[1] = 2
            :: w && ek[0] && ek[1] -> ek[2] = 1; ei[2] = 2
            :: else -> skip fi);
    if :: !w && tries < 1 -> tries++; goto look :: else -> skip fi;
    STEP(PUBLISH(st[2], hold[2], ME, (w -> READY : LAST)));        /* M:aon.10 else private */
    STEP(RELEASE(st[2], hold[2], ME, w));
    if :: w -> goto close :: else -> goto done fi;
abort:
    STEP(LEAVE(st[2], hold[2], ME, w));
close:
    STEP(MINE(2); ERASE(2)); STEP(seq[2]++); STEP(MINE(2); FREED(2));
done:
    fin++;
    goto out;
crashed:
    dead[p] = true;
scrub:
    reaped[p] = true;
    REAP(RSTEP, p);
    atomic { reaped[p] = false; fin++ };
out: skip
}

init {
    byte i, n;
    atomic {
#ifndef STARTFREE
        st[0] = READY; key[0] = 1; ek[0] = 1; ei[0] = 0;
        st[1] = READY; key[1] = 2; ek[1] = 2; ei[1] = 1;
#endif
        run Allocator(0); run Allocator(1);
#ifdef SOLO
        fin = 1;
#else
        st[2] = FILLING; hold[2] = BIT(2); key[2] = 1;
        run Registrar(2);
#endif
    };
    fin == 3;
    atomic {
        CHECK(unique, (ek[0] == 1) + (ek[1] == 1) + (ek[2] == 1) <= 1);
        i = 0;
        do
        :: i >= 3 -> break
        :: else ->
           CHECK(clean, hold[i] == 0 && (st[i] == FREE || st[i] == READY));
           n = (ek[0] && ei[0] == i) + (ek[1] && ei[1] == i) + (ek[2] && ei[2] == i);
           CHECK(unique, n == (st[i] == READY));
           i++
        od;
#ifdef SOLO
        CHECK(one_wins, kills > 0 || granted >= 1)
#endif
    }
}
