/* Concern: the wait word of a block (and of `space`): bit 0 = somebody waits, +2 at each wake.
 * Bounds: 1 waiter, 1 waker that may be killed before every step; the waiter has a time-out unless
 * NOTIMEOUT.  NOTIMEOUT without a kill must pass: no wake is lost.
 * Controls: NOTIMEOUT with a kill (the wait never ends); WAKEFIRST the counter is
 *   moved before the state (a lost wake, also without a kill)                                  */
#include "common.pml"
byte fut;
bool ready, woken, gone;

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
    if :: woken :: timeout -> if :: gone && !ready -> goto out :: else -> skip fi fi; /* M:wait.4 */
#endif
    goto loop;
out: skip
}
active proctype Waker() {
    byte o;
#ifdef WAKEFIRST
    STEP(o = fut & 1; fut = fut + 2); STEP(ready = true);
#else
    STEP(ready = true);                           /* M:wait.5 the state store */
    STEP(o = fut & 1; fut = fut + 2);             /* M:wait.6 fut += 2 */
#endif
    if :: o -> STEP(fut = fut & 254); STEP(woken = true) :: else -> skip fi; /* M:wait.7 wake all */
    goto out;
crashed: gone = true;
out: skip
}
