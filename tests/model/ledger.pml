/* Concern: how a hold is recorded - why it is a bit a slot in the word and not a count.
 * A reader holds a block and may die at any step; a reaper undoes what the dead one held; an
 * evictor takes the block when nobody holds it.
 * Bounds: 1 block, 2 readers (2 operations each), KILLS kills; the reaper may be killed too.
 * Controls: COUNTFIRST a count, then the reader's ledger (a kill between leaks the hold for ever);
 *   LEDGERFIRST the ledger, then the count (the reaper takes another reader's hold)            */
#ifndef KILLS
#define KILLS 2
#endif
#include "common.pml"

byte st = READY, hold, count, ledger[2];
bool evicted;
#if defined(COUNTFIRST)
#define HOLD STEP(ok = (st == READY); IF(ok, count++)); IF(!ok, goto next); STEP(ledger[p] = 1)
#define UNHOLD STEP(ledger[p] = 0); STEP(CHECK(held, count > 0); count--)
#define UNDO STEP(w = ledger[p]); IF(w, STEP(ledger[p] = 0; CHECK(held, count > 0); count--))
#define HELD (count > 0)
#elif defined(LEDGERFIRST)
#define HOLD STEP(ledger[p] = 1); STEP(ok = (st == READY); IF(ok, count++)); \
    if :: !ok -> STEP(ledger[p] = 0); goto next :: else -> skip fi
#define UNHOLD STEP(CHECK(held, count > 0); count--); STEP(ledger[p] = 0)
#define UNDO STEP(w = ledger[p]); IF(w, STEP(ledger[p] = 0; CHECK(held, count > 0); count--))
#define HELD (count > 0)
#else
#define HOLD STEP(ACQUIRE(st, hold, ME, ok)); IF(!ok, goto next)
#define UNHOLD STEP(RELEASE(st, hold, ME, ok))
#define UNDO STEP(hold = hold & ~ME)
#define HELD (hold != 0)
#endif

proctype Reader(byte p) {
    byte ops, ok, w;
next:
    atomic { ok = 0; w = 0; if :: ops >= 2 -> goto out :: else -> ops++ fi };
    HOLD;                                       /* M:word.1 one CAS */
    STEP(CHECK(held, st == READY && !evicted));
    STEP(CHECK(held, st == READY && !evicted));
    UNHOLD;                                     /* M:word.2 one CAS */
    goto next;
crashed:
    UNDO;                                       /* M:word.3 the dead slot's bit */
    goto next;
out:
    atomic { fin++ }
}
active proctype Evictor() {
    if
    :: atomic { st == READY && !HELD -> st = EVICTING; evicted = true } /* M:word.4 evict-claim */
    :: fin == 2
    fi
}
init {
    atomic { run Reader(0); run Reader(1) };
    fin == 2;
    CHECK(clean, !HELD)
}
