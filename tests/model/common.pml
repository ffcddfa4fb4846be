/* Shared by every model: states, kill points, named checks, and the word's transitions.
 *
 * A word is (st, hold): the state and one bit a slot.  Each macro below that takes (st, hold, bit)
 * is ONE compare-exchange of the C++ code; the caller wraps it in STEP.
 * A step is marked  M:concern.n  here and at its line in cpp/, so that the two can be compared.
 * Limits of all models: sequentially consistent, small bounds (each file's header names them).  */
#define FREE 0
#define FILLING 1
#define READY 2
#define EVICTING 3
#define LAST 6 /* READY_LAST: the last release closes it */
#define NONE 9

#ifndef KILLS
#define KILLS 1
#endif
byte kills, fin; /* SIGKILLs so far; processes that have ended */

#define BIT(s) (1 << (s))
#define ME BIT(p)
#define IF(c, ...) if :: c -> __VA_ARGS__ :: else -> skip fi

/* A process may be killed before every step; it then goes to its label `crashed`, where it stands
 * for the one survivor that holds the dead slot's life byte (and may itself be killed). */
#define KILL atomic { kills < KILLS -> kills++; goto crashed }
#define STEP(...) atomic { if :: kills < KILLS -> kills++; goto crashed :: true -> skip fi; \
                           __VA_ARGS__ }

/* A check has a name, so that the runner can tell why a control failed. */
#define CHECK(name, c) assert((c) || name)
hidden byte owner; /* only the one holder of an EVICTING or private block writes it */
hidden byte held;  /* who uses or releases a block has its bit there */
hidden byte bytes; /* what a holder reads is this life's, whole, and of the key asked for */
hidden byte clean; /* at the end: no holder, no block in passing, nothing lost */
hidden byte unique; /* at the end: at most one entry a key, each leads to its READY block */

#define IS_READY(s) ((s) == READY || (s) == LAST)
#define OWN(st, hold, b) CHECK(owner, st == EVICTING && hold == (b))

#define CLAIM_FREE(st, hold, b, ok) \
    if :: st == FREE -> st = FILLING; hold = b; ok = 1 :: else -> ok = 0 fi
#define CLAIM_VICTIM(st, hold, b, ok) \
    if :: st == READY && hold == 0 -> st = EVICTING; hold = b; ok = 1 :: else -> ok = 0 fi
#define JOIN(st, hold, b, ok) \
    if :: st == FILLING && hold != 0 -> hold = hold | b; ok = 1 :: else -> ok = 0 fi
#define ACQUIRE(st, hold, b, ok) \
    if :: IS_READY(st) -> hold = hold | b; ok = 1 :: else -> ok = 0 fi
#define PUBLISH(st, hold, b, as) \
    if :: st == FILLING -> CHECK(held, hold & (b)); st = as \
       :: else -> CHECK(held, IS_READY(st) && (hold & (b))) fi
/* close = 1: the caller is now the one holder of an EVICTING block and must close it */
#define RELEASE(st, hold, b, close) \
    if :: st == LAST && hold == (b) -> st = EVICTING; close = 1 \
       :: else -> CHECK(held, IS_READY(st) && (hold & (b))); hold = hold & ~(b); close = 0 fi
#define LEAVE(st, hold, b, close) \
    if :: st == FILLING && hold == (b) -> st = EVICTING; close = 1 \
       :: st == LAST && hold == (b) -> st = EVICTING; close = 1 \
       :: else -> CHECK(held, (st == FILLING || IS_READY(st)) && (hold & (b))); \
                  hold = hold & ~(b); close = 0 fi
