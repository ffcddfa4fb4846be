/* Concern: one shared fill - allocate, tell, join, begin, device write, arrive, publish, leave,
 * evict, reuse, reap.  A slice is written once a life; a dead rank's missing slice makes the fill
 * unpublishable; nothing is freed while a device may still write.
 * Bounds: 1 block, 2 slices, NP slots, OPS operations a slot, KILLS kills (reapers too).
 * A submitted device write lands at any later time, also after the death of its process.
 * Controls: STOREPUB publish by store; SCRUBFREE scrub frees a shared fill; NOSEQ join without seq;
 *   DIRECTFREE FILLING to FREE; SEQLATE seq changes after EVICTING; LEAVEFILLING leave insists on
 *   FILLING; NOBEGIN slice without begin; NODEVBYTE reap with only the life byte; ABORTFLIGHT abort
 *   with a transfer in flight; PUBNOPARTS publish without all parts; UNCLAIMCAS a roll-back that
 *   passes over a joiner with an old handle                                                    */
#ifndef NP
#define NP 3
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef KILLS
#define KILLS 2
#endif
#include "common.pml"
hidden byte landed; /* a device write lands in the life it was submitted for */

byte st, hold, seq = 1; /* the word and the life number */
byte told;              /* the last handle that was handed out */
byte begun, arrived;    /* the `parts` field */
byte slice[2];          /* ghost: life whose bytes the slice holds, 0 = being written */
byte flying[NP], fpart[NP]; /* ghost: a device write in flight for the slot: life, slice */

#define WHOLE(h) (slice[0] == h && slice[1] == h)

#ifdef SEQLATE
#define REUSE STEP(OWN(st, hold, ME); st = FILLING); STEP(seq++)
#else
#define REUSE STEP(seq++); STEP(OWN(st, hold, ME); st = FILLING)
#endif
#ifdef STOREPUB
#define PUB STEP(w = hold); STEP(st = READY; hold = w)
#else
#define PUB STEP(PUBLISH(st, hold, ME, READY))
#endif
#if defined(DIRECTFREE)
#define QUIT if :: st == FILLING && hold == ME -> ok = 1 :: else -> hold = hold & ~ME; ok = 0 fi
#define FREED true
#elif defined(LEAVEFILLING)
#define QUIT if :: st == FILLING && hold == ME -> st = EVICTING; ok = 1 \
                :: st == FILLING && hold != ME -> hold = hold & ~ME; ok = 0 \
                :: else -> ok = 0 fi
#define FREED (st == EVICTING && hold == ME)
#else
#define QUIT LEAVE(st, hold, ME, ok)
#define FREED (st == EVICTING && hold == ME)
#endif
#ifdef UNCLAIMCAS /* one CAS, its failure ignored, whoever else has come */
#define UNCLAIM STEP(w = hold); STEP(IF(st == FILLING && hold == w, st = EVICTING)); goto close
#else
#define UNCLAIM goto leave /* the allocation fell short */
#endif
#ifdef NODEVBYTE
#define DEVBYTE true
#else
#define DEVBYTE (flying[p] == 0)
#endif

proctype Slot(byte p) {
    byte ops, h, part, ok, w;
next:
    atomic { h = 0; part = 0; ok = 0; w = 0; if :: ops >= OPS -> goto out :: else -> ops++ fi };
    if :: goto allocate :: goto join :: goto read fi;

allocate:
    STEP(CLAIM_FREE(st, hold, ME, ok));             /* M:fill.1 FREE -> FILLING{me} */
    if :: ok -> if :: goto reset :: UNCLAIM fi :: else -> skip fi;
    STEP(CLAIM_VICTIM(st, hold, ME, ok));           /* M:fill.2 READY{} -> EVICTING{me} */
    IF(!ok, goto next);
    REUSE;                                          /* M:fill.3 seq++, then FILLING{me} by store */
reset:
    STEP(arrived = 0; begun = 0);                  /* M:fill.4 parts reset before anybody is told */
    STEP(h = seq; told = h);                        /* M:fill.5 tell (id, seq) */
    goto member;

join:
    STEP(h = told);
    IF(h == 0, goto next);
    STEP(JOIN(st, hold, ME, ok));                   /* M:fill.6 FILLING, >= 1 holder: + me */
    IF(!ok, goto next);
#ifndef NOSEQ
    STEP(ok = (seq == h));                          /* M:fill.7 then compare seq */
    IF(!ok, goto leave);
#endif
    part = 1;

member:
    if :: skip :: goto leave fi;                    /* its deadline may come at once */
#ifndef NOBEGIN
    STEP(ok = !(begun & BIT(part)); begun = begun | BIT(part)); /* M:fill.8 begin: fetch_or */
    IF(!ok, goto leave);
#endif
    STEP(CHECK(held, st == FILLING && (hold & ME) && seq == h);
         slice[part] = 0; flying[p] = h; fpart[p] = part);      /* M:fill.9 submit the transfer */
#ifdef ABORTFLIGHT
    if :: KILL :: flying[p] == 0 :: goto leave fi;
#else
    if :: KILL :: flying[p] == 0 fi;                            /* M:fill.10 its completion */
#endif
    STEP(CHECK(held, hold & ME); arrived = arrived | BIT(part)); /* M:fill.11 arrive */
publish:
#ifdef PUBNOPARTS
    ok = 1;
#else
    STEP(ok = (arrived == 3));                      /* M:fill.12 all parts there? */
#endif
    if :: ok -> PUB; goto use                       /* M:fill.13 one CAS; the others see READY */
       :: else -> if :: KILL :: arrived == 3 -> goto publish :: goto leave fi fi;

read:
    STEP(ACQUIRE(st, hold, ME, ok));                /* M:fill.14 acquire */
    IF(!ok, goto next);
    h = 0;
use:
    STEP(CHECK(held, IS_READY(st) && (hold & ME)); IF(h == 0, h = seq);
         CHECK(bytes, seq == h && WHOLE(h)));
    STEP(CHECK(held, IS_READY(st) && (hold & ME)); CHECK(bytes, seq == h && WHOLE(h)));
    STEP(RELEASE(st, hold, ME, ok));                /* M:fill.15 release */
    goto next;

leave:
    STEP(QUIT);                                     /* M:fill.16 leave, abort; READY: a release */
    IF(!ok, goto next);
close:
    STEP(seq++);                                    /* M:fill.17 close: seq, then FREE by store */
    STEP(CHECK(owner, FREED); st = FREE; hold = 0); /* M:fill.18 */
    goto next;

crashed: /* reap on behalf of slot p, under its life byte */
    STEP(w = FREE; IF(hold & ME, w = st));
    if
    :: IS_READY(w) -> STEP(IF(IS_READY(st), hold = hold & ~ME)); goto crashed /* M:fill.19 */
    :: w == FILLING ->
       DEVBYTE;                                     /* M:fill.20 or some later reap */
#ifdef SCRUBFREE
       STEP(seq++); STEP(st = FREE; hold = 0);
#else
       STEP(if :: st == FILLING && hold == ME -> st = EVICTING
               :: st == FILLING && hold != ME -> hold = hold & ~ME
               :: else -> skip fi);                 /* M:fill.21 leave on behalf */
#endif
       goto crashed
    :: w == EVICTING -> STEP(seq++); STEP(OWN(st, hold, ME); st = FREE; hold = 0); goto crashed
    :: else -> skip
    fi;
    DEVBYTE;                                       /* M:fill.22 claimed only with both bytes free */
    goto next;
out:
    atomic { fin++ }
}

#define LAND(i) atomic { flying[i] != 0 -> \
    CHECK(landed, st == FILLING && (hold & BIT(i)) && seq == flying[i]); \
    slice[fpart[i]] = flying[i]; flying[i] = 0 }
active proctype Device() { end: do :: LAND(0) :: LAND(1) :: LAND(NP - 1) od }

init {
    byte i;
    atomic { i = 0; do :: i < NP -> run Slot(i); i++ :: else -> break od };
    fin == NP && flying[0] == 0 && flying[1] == 0 && flying[NP - 1] == 0;
    CHECK(clean, hold == 0 && (st == FREE || st == READY));
    CHECK(bytes, st == FREE || WHOLE(seq))
}
