/* Concern: slot claim and reap - life byte, device byte, region bits, helper threads.
 * The kernel: life[s] = the description that holds slot s's life byte (1 + id of a main, 5 + id of
 * a helper), dropped at once at death; dev[s] = a transfer of slot s in flight, its device byte is
 * held as long, whoever lives.
 * Bounds: 2 slots, 2 blocks in 2 regions, 2 processes, NH helper threads that reap RE times, OPS
 * lives of each main, KILLS kills (a helper dies with its process).
 * Controls: ONEDESC two reapers on one description; NOLOCK reap without the lock; REGLATE region
 *   bit after the word bit; NODEV FILLING reaped with only the life byte; ABORTFLIGHT abort with a
 *   transfer in flight; REGCLR a region is cleared though a FILLING waits in it; FORKMAP a fork
 *   child keeps the ring mapped; OWNSLOT a process reaps its own slot
 * Variant: CLAIMNODEV a slot is claimed while its device byte is held                       */
#ifndef NH
#define NH 2
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef RE
#define RE 1
#endif
#include "common.pml"
hidden byte landed;    /* a device write lands in the block it was submitted for */
hidden byte slot_free; /* at the end every slot can be claimed */
#define NOSLOT 7

byte st[2], hold[2], reg[2];         /* words; region bits of each slot */
byte life[2], dev[2];                /* kernel: see above; dev is block + 1 */
byte epoch[2], slot[2];              /* which life of the process; the slot it has */

#define DROPPED(id) IF(life[0] == 1 + id || life[0] == 5 + id, life[0] = 0); \
    IF(life[1] == 1 + id || life[1] == 5 + id, life[1] = 0)
#define HSTEP(...) atomic { if :: epoch[id] != ep -> goto gone :: else -> skip fi; __VA_ARGS__ }
#define MINE(i, s) OWN(st[i], hold[i], BIT(s))
#ifdef NODEV
#define DEVHELD(s) false
#else
#define DEVHELD(s) (dev[s] != 0)
#endif
#ifdef REGCLR
#define KEEP false
#else
#define KEEP keep
#endif
/* scrub of slot s under its life byte: M is the step macro of who does it */
#define SCRUB(M, s) r = 0; \
    do :: r >= 2 -> break \
       :: else -> \
          M(w = (reg[s] & BIT(r)) != 0); \
          if :: w -> \
                M(w = FREE; IF(hold[r] & BIT(s), w = st[r])); keep = false; \
                if :: w == READY -> M(IF(st[r] == READY, hold[r] = hold[r] & ~BIT(s))) \
                   :: w == FILLING -> \
                      M(keep = DEVHELD(s)); \
                      if :: keep -> skip \
                         :: else -> M(CHECK(owner, st[r] == FILLING && hold[r] == BIT(s)); \
                                      st[r] = EVICTING); \
                                    M(MINE(r, s); st[r] = FREE; hold[r] = 0) fi \
                   :: w == EVICTING -> M(MINE(r, s); st[r] = FREE; hold[r] = 0) \
                   :: else -> skip fi; \
                if :: KEEP -> skip :: else -> M(reg[s] = reg[s] & ~BIT(r)) fi \
             :: else -> skip fi; \
          r++ od

proctype Main(byte id) {
    byte ops, s, r, w, q;
    bool keep;
start:
    atomic { slot[id] = NOSLOT; s = 0; r = 0; w = 0; q = 0; keep = false;
             if :: ops >= OPS -> goto out :: else -> ops++ fi };
claim:
    if :: s >= 2 -> goto start :: else -> skip fi;
    STEP(w = (life[s] == 0); IF(w, life[s] = 1 + id));             /* M:slots.1 the life byte */
    if :: w == 0 -> s++; goto claim :: else -> skip fi;
#ifndef CLAIMNODEV
    STEP(w = (dev[s] == 0));                                       /* M:slots.2 the device byte */
    if :: w == 0 -> STEP(life[s] = 0); s++; goto claim :: else -> skip fi;
#endif
    SCRUB(STEP, s);                                                /* M:slots.3 scrub */
    STEP(slot[id] = s);
    if :: q = 0 :: q = 1 fi;
#ifndef REGLATE
    STEP(reg[s] = reg[s] | BIT(q));                                /* M:slots.4 region bit first */
#endif
    STEP(if :: st[q] == READY -> hold[q] = hold[q] | BIT(s); w = 1
            :: st[q] == READY && hold[q] == 0 -> st[q] = EVICTING; hold[q] = BIT(s); w = 2
            :: st[q] == FREE -> st[q] = FILLING; hold[q] = BIT(s); w = 3
            :: st[q] == FILLING || st[q] == EVICTING -> w = 0 fi); /* M:slots.5 then the word */
#ifdef REGLATE
    STEP(reg[s] = reg[s] | BIT(q));
#endif
    if :: w == 0 -> goto detach
       :: w == 1 -> goto use
       :: w == 2 -> STEP(MINE(q, s); st[q] = FILLING)
       :: w == 3 -> skip fi;
    STEP(CHECK(owner, st[q] == FILLING && hold[q] == BIT(s)); dev[s] = q + 1);/* M:slots.6 submit */
#ifdef ABORTFLIGHT
    if :: KILL :: dev[s] == 0 :: goto abort fi;
#else
    if :: KILL :: dev[s] == 0 -> if :: skip :: goto abort fi fi;   /* M:slots.7 its completion */
#endif
    STEP(CHECK(owner, st[q] == FILLING && hold[q] == BIT(s)); st[q] = READY);
use:
    STEP(CHECK(held, st[q] == READY && (hold[q] & BIT(s))));
    STEP(CHECK(held, st[q] == READY && (hold[q] & BIT(s))); hold[q] = hold[q] & ~BIT(s));
    goto detach;
abort:
    STEP(CHECK(owner, st[q] == FILLING && hold[q] == BIT(s)); st[q] = EVICTING);
    STEP(MINE(q, s); st[q] = FREE; hold[q] = 0);
detach:
    STEP(CHECK(owner, life[s] == 1 + id); life[s] = 0; slot[id] = NOSLOT);
    goto start;
crashed: /* the kernel drops the locks; the process is started anew */
    atomic { epoch[id]++; DROPPED(id); slot[id] = NOSLOT };
    goto start;
out:
    atomic { epoch[id] = 99; DROPPED(id); fin++ }
}

proctype Helper(byte id) {
    byte n, t, r, w, ep;
    bool keep;
again:
    if :: n >= RE || epoch[id] == 99 -> goto out :: else -> n++ fi;
    atomic { ep = epoch[id]; if :: t = 0 :: t = 1 fi; r = 0; w = 0; keep = false };
#if defined(ONEDESC) /* an OFD lock never conflicts with itself */
    HSTEP(w = (slot[id] != t && (life[t] == 0 || life[t] == 1 + id || life[t] == 5 + id));
          IF(w && life[t] == 0, life[t] = 5 + id));
#elif defined(NOLOCK)
    HSTEP(w = (life[t] == 0));
#elif defined(OWNSLOT)
    HSTEP(w = (life[t] == 0 || slot[id] == t); IF(life[t] == 0, life[t] = 5 + id));
#else
    HSTEP(w = (slot[id] != t && life[t] == 0); IF(w, life[t] = 5 + id)); /* M:slots.8 fresh one */
#endif
    if :: w == 0 -> goto again :: else -> skip fi;
    SCRUB(HSTEP, t);                                               /* M:slots.9 reap */
#ifndef NOLOCK
    HSTEP(IF(life[t] == 5 + id, life[t] = 0));                     /* M:slots.10 let it go */
#endif
gone:
    goto again;
out:
    atomic { fin++ }
}

#ifdef FORKMAP /* the child of a dead process keeps its ring: the byte is held for ever */
#define TORN_DOWN(s) (life[s] == 1 || life[s] == 2)
#else
#define TORN_DOWN(s) true
#endif
#define LAND(s) atomic { dev[s] != 0 && TORN_DOWN(s) -> \
    CHECK(landed, st[dev[s] - 1] == FILLING && hold[dev[s] - 1] == BIT(s)); dev[s] = 0 }
active proctype Device() { end: do :: LAND(0) :: LAND(1) od }
#define QUIET(...) atomic { __VA_ARGS__ }

init {
    byte s, r, w;
    bool keep;
    atomic { slot[0] = NOSLOT; slot[1] = NOSLOT; st[0] = READY;
             run Main(0); run Main(1); run Helper(1);
             if :: NH > 1 -> run Helper(0) :: else -> skip fi };
    fin == 2 + NH;
#ifndef FORKMAP
    dev[0] == 0 && dev[1] == 0;
#endif
    s = 0;
    do :: s >= 2 -> break :: else -> CHECK(slot_free, life[s] == 0 && dev[s] == 0);
                                     SCRUB(QUIET, s); s++ od;
    CHECK(clean, hold[0] == 0 && hold[1] == 0 && (st[0] == FREE || st[0] == READY)
                 && (st[1] == FREE || st[1] == READY) && reg[0] == 0 && reg[1] == 0)
}
