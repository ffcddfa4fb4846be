/* Concern: the wait word of a block (and of `space`): bit 0 = somebody waits, +2 at each wake.
 * Bounds: 1 waiter, NW wakers, killed before any step; the waiter has a time-out unless NOTIMEOUT.
 *  NOTIMEOUT without a kill must pass: no wake is lost.
 * Controls: NOTIMEOUT with a kill (the wait never ends); WAKEFIRST the counter is
 *   moved before the state (a lost wake, also without a kill)                                  */
#ifndef NW
#define NW 2
#endif
#include "common.pml"
byte fut;
bool ready, woken;
byte gone;

active proctype Waiter() {
    byte f;
loop:
    atomic { f = fut | 1; fut = fut | 1 };        /* M:wait.1 f = fetch_or(fut, 1) | 1 */
    if :: ready -> goto out :: else -> skip fi;   /* M:wait.2 still FILLING with my key? */
    atomic { woken = false;
             if :: fut != f -> goto loop :: else -> skip fi }; /* M:wait.3 FUTEX_WAIT(f) */
#ifdef NOTIMEOUT
    woken;
#else
    if :: woken                                   /* M:wait.4 or a time-out: probe, reap */
       :: timeout -> if :: gone == NW && !ready -> goto out :: else -> skip fi fi;
#endif
    goto loop;
out: skip
}
proctype Waker() {
    byte o;
#ifdef WAKEFIRST
    STEP(o = fut & 1);
    if :: o -> STEP(fut = fut + 2); STEP(fut = fut & 254); STEP(woken = true) :: else -> skip fi;
    STEP(ready = true);
#else
    STEP(ready = true);                           /* M:wait.5 the state */
    STEP(o = fut & 1);                            /* M:wait.6 nobody waits: done */
    if :: o -> STEP(fut = fut + 2);               /* M:wait.7 move the counter */
               STEP(fut = fut & 254);             /* M:wait.8 clear the bit */
               STEP(woken = true)                 /* M:wait.9 wake all */
       :: else -> skip fi;
#endif
    goto out;
crashed:
    gone++;
out: skip
}
init { byte i; atomic { i = 0; do :: i < NW -> run Waker(); i++ :: else -> break od } }
