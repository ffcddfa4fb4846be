/* Concern: index insert and erase.  Slots want the same key(s): look-up, wait, allocate or evict +
 * erase + reuse, key write, announce (or not), fill, register, duplicate, reject, release, reap.
 * A private block (FULL, or EXISTS that cannot be resolved) is READY_LAST without entry.  A look-up
 * and a register that meet a DUPLICATE through a stale entry give it back: a miss, a retry.
 * Bounds: NB blocks, NE positions (both buckets), NK keys, NP slots, OPS operations, KILLS kills.
 * Variants: WARM block 0 starts READY{} with key 1, indexed; NOANNOUNCE insert at register only;
 *   BLIND allocate and register also without a look-up before
 * Controls: NOTENT no tentative phase; NOERASE scrub leaves entries; NOVERIFY the reader skips the
 *   key check; IGNEVICT an inserter overwrites the entry of an EVICTING block; RAWREL a duplicate's
 *   release does not go through EVICTING; NOABORTERASE abort leaves the announced entry;
 *   NODUPCHECK a look-up takes a duplicate, whose release then drops a primary never acquired  */
#include "index.inc"

proctype Slot(byte p) {
    byte ops, i, j, id, o, k, ent, ok, tries, w, prim;
    bool inserted, dup, filled;
next:
    atomic {
        inserted = false; dup = false; filled = false; prim = NONE; id = NONE; o = NONE;
        tries = 0; ent = NONE; ok = 0; w = 0; i = 0; j = 0;
        if :: ops >= OPS -> goto out :: else -> ops++ fi
    };
    if :: k = 1 :: NK > 1 -> k = NK fi;
#ifdef BLIND
    if :: goto allocate :: skip fi;
#endif

lookup:
    i = 0;
    do
    :: i >= NE -> break
    :: else ->
       STEP(o = NONE; IF(e[i].s == COMMITTED && e[i].key == k, o = e[i].id)); /* M:index.1 scan */
       if
       :: o == NONE -> skip
       :: else ->
          STEP(w = b[o].st; ACQUIRE(b[o].st, b[o].hold, ME, ok));      /* M:index.2 acquire */
          if
          :: ok ->
             STEP(ok = FOUND(o));                                     /* M:index.3 key, DUPLICATE */
             if :: ok -> id = o; goto use :: else -> skip fi;
             DROP(o)                                                   /* M:index.4 raw release */
          :: !ok && w == FILLING && tries < 1 ->
             STEP(ok = (b[o].key == k));                               /* M:index.5 pending */
             if :: ok -> tries++;
                         if :: KILL :: b[o].st != FILLING -> skip :: skip fi;
                         goto lookup
                :: else -> skip fi
          :: else -> skip
          fi
       fi;
       i++
    od;

allocate: /* free blocks, then a victim */
    i = 0;
    do :: i >= NB || id != NONE -> break
       :: else -> STEP(CLAIM_FREE(b[i].st, b[i].hold, ME, ok)); IF(ok, id = i); i++ od;
    if :: id != NONE -> goto fill :: else -> i = 0 fi;
    do :: i >= NB || id != NONE -> break
       :: else -> STEP(CLAIM_VICTIM(b[i].st, b[i].hold, ME, ok)); IF(ok, id = i); i++ od;
    IF(id == NONE, goto next);
    ERASE(id);                                                         /* M:index.6 erase */
    STEP(MINE(id); b[id].key = 0);                                     /* M:index.7 key = 0 */
    STEP(MINE(id); b[id].st = FILLING);                                /* M:index.8 reuse */
fill:
    STEP(FILLER(id); b[id].dup = false; b[id].prim = NONE);
    STEP(FILLER(id); b[id].key = k);                                   /* M:index.9 key complete */
#ifndef NOANNOUNCE
    if :: goto insert :: skip fi;                                      /* M:index.10 announce */
#endif
data:
    if :: inserted -> if :: skip :: tries = 1; goto abort fi :: else -> skip fi;
    STEP(FILLER(id); b[id].data = 0);
    STEP(FILLER(id); b[id].data = k);
    filled = true; tries = 0;
    if :: !inserted -> goto insert :: else -> skip fi;
publish:
    IF(dup, STEP(FILLER(id); b[id].dup = true; b[id].prim = prim));    /* M:index.11 before it */
    STEP(PUBLISH(b[id].st, b[id].hold, ME, (inserted -> READY : LAST))); /* M:index.12 publish */
    goto use;

insert:
    ent = NONE; j = 0;
    do :: j >= NE || ent != NONE -> break
       :: else -> STEP(IF(e[j].s == EMPTY, SET(j, FIRST, id, k); ent = j)); j++ od; /* M:index.13 */
#ifdef NOTENT
    IF(ent != NONE, goto committed);
#endif
    if :: ent == NONE -> o = NONE; goto verdict :: else -> skip fi;    /* FULL: stays private */
    j = 0; /* rescan */
    do
    :: j >= NE -> break
    :: j == ent -> j++
    :: else ->
       STEP(w = EMPTY; IF(e[j].s != EMPTY && e[j].key == k, w = e[j].s; o = e[j].id));/* M:index.14 */
       IF(w != EMPTY, STEP(IF(b[o].key != k, w = EMPTY)));             /* M:index.15 whole key */
       if
#ifdef IGNEVICT
       :: w == COMMITTED && b[o].st == EVICTING -> STEP(IF(IS(j, COMMITTED, o, k), CLR(j)))
#endif
       :: w == COMMITTED || (w == TENTATIVE && j < ent) ->
          STEP(IF(IS(ent, TENTATIVE, id, k), CLR(ent)));               /* M:index.16 withdraw */
          goto verdict
       :: w == TENTATIVE && j > ent ->
          STEP(if :: IS(j, TENTATIVE, o, k) -> CLR(j); w = 0
                  :: else -> w = 1 fi);                                /* M:index.17 push out */
          IF(w, goto same)                                             /* look there once more */
       :: else -> skip
       fi;
       j++;
same:  skip
    od;
    STEP(if :: IS(ent, TENTATIVE, id, k) -> e[ent].s = COMMITTED
            :: else -> ent = NONE fi);                                 /* M:index.18 commit */
    if :: ent == NONE -> goto insert :: else -> skip fi;
committed:
    inserted = true;
    if :: filled -> goto publish :: else -> goto data fi;

verdict: /* EXISTS: o has the key; FULL: o == NONE */
    if :: !filled -> if :: goto data :: o != NONE -> goto abort fi :: else -> skip fi;
    IF(o == NONE, goto publish);
    STEP(w = b[o].st; ACQUIRE(b[o].st, b[o].hold, ME, ok));            /* M:index.19 acquire */
    if
    :: ok ->
       STEP(ok = FOUND(o));                                            /* M:index.20 no duplicate */
       if :: ok -> prim = o; if :: dup = true; goto publish            /* M:index.21 allow */
                                :: goto abort fi                       /* M:index.22 reject */
          :: else -> DROP(o) fi
    :: !ok && w == FILLING -> dup = true; goto publish                 /* M:index.23 no primary */
    :: else -> skip
    fi;
    if :: tries < 1 -> tries++; goto insert :: else -> goto publish fi; /* M:index.24 private */

abort:
    STEP(LEAVE(b[id].st, b[id].hold, ME, ok));                         /* M:index.25 leave */
#ifndef NOABORTERASE
    ERASE(id);
#endif
    FREE_IT(id);
    if :: prim != NONE -> id = prim; prim = NONE; goto use :: else -> id = NONE fi;
    if :: tries < 1 -> tries++; goto lookup :: else -> goto next fi;

use:
    STEP(USABLE(id));
    STEP(USABLE(id));
    STEP(prim = NONE; IF(b[id].dup, prim = b[id].prim));               /* M:index.26 while held */
    RAW(id);                                                           /* M:index.27 raw release */
    if :: prim != NONE -> RAW(prim) :: else -> skip fi;                /* M:index.28 no recursion */
    goto next;

crashed:
    i = 0;
    do
    :: i >= NB -> break
    :: else ->
       STEP(w = FREE; IF(b[i].hold & ME, w = b[i].st));
       if :: IS_READY(w) || w == FILLING -> STEP(LEAVE(b[i].st, b[i].hold, ME, ok))
          :: w == EVICTING -> ok = 1
          :: else -> ok = 0 fi;
       if :: ok ->
#ifndef NOERASE
             ERASE(i);                                                 /* M:index.29 on behalf */
#endif
             FREE_IT(i)
          :: else -> skip fi;
       i++
    od;
    goto next;
out:
    atomic { fin++ }
}
