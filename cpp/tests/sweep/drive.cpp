// SPDX-License-Identifier: Apache-2.0
#include "drive.hpp"

#include <signal.h>

namespace kvshm_sweep {
namespace {

constexpr int kLimitMs = 30000;

int act_as(const Op& op, Scene& s, const Plan& plan) {
  if (op.from_attach) follow(plan);
  kvshm_arena* a = attach(s.pool.name);
  CHILD_CHECK(a);
  if (op.prepare)
    if (const int rc = op.prepare(a, s)) return rc;
  if (!op.from_attach) follow(plan);
  return op.act(a, s);
}

Child start(const Op& op, Scene& s, int die_at) {
  return Child([&](Wire&) { return act_as(op, s, {.die_at = die_at}); });
}

// Reaps what is left and dies at the step: by kvshm_reap, or in attaching to a slot of the dead.
bool reap_and_die(Child& reaper, bool attached) {
  if (attached) reaper.tell();
  const int end = reaper.wait(kLimitMs);
  EXPECT_TRUE(end == 0 || end == -SIGKILL) << "the reaper ended with " << end;
  return end == -SIGKILL;
}

void look_after(const Op& op, Scene& s) {
  if (!op.after) return;
  EXPECT_EQ(op.after(s.a), 0) << "afterwards, to the survivor";
}

void finish(const Op& op, Scene& s, bool by_next_owner, unsigned may_go) {
  s.clear_up(by_next_owner);
  if (op.spare) s.open_spare();
  look_after(op, s);
  s.check(may_go);
}

}  // namespace

Outcome run_one(const Op& op, int at, int reaper_at, bool* reaper_died) {
  Outcome out;
  {
    Scene s;
    if (op.setup) op.setup(s);
    const bool attached = reaper_at % 2;  // before the death; else it attaches afterwards
    auto reaper_work = [&](Wire& wire) {
      if (!attached) follow({.die_at = reaper_at});
      kvshm_arena* a = attach(s.pool.name);
      CHILD_CHECK(a);
      if (attached) {
        wire.tell();
        wire.listen(kLimitMs);
        follow({.die_at = reaper_at});
      }
      CHILD_CHECK(kvshm_reap(a, nullptr) == 0);
      return 0;
    };
    std::unique_ptr<Child> reaper;
    if (reaper_at && attached) {
      reaper = std::make_unique<Child>(reaper_work);
      EXPECT_TRUE(reaper->listen());
    }
    Child victim = start(op, s, at);
    const int end = victim.wait(kLimitMs);
    EXPECT_TRUE(end == 0 || end == -SIGKILL) << "it ended with " << end;
    out.died = end == -SIGKILL;
    if (reaper_at) {
      if (!reaper) reaper = std::make_unique<Child>(reaper_work);
      const bool died = reap_and_die(*reaper, attached);
      if (reaper_died) *reaper_died = died;
    }
    finish(op, s, at % 2 == 0, out.died ? op.may_go : op.goes);
  }
  out.problems = failures();
  return out;
}

Outcome run_pair(const Pair& p) {
  Outcome out;
  {
    Scene s;
    if (p.first->setup) p.first->setup(s);
    if (p.second->setup && p.second->name != p.first->name) p.second->setup(s);
    Child held_up([&](Wire& wire) {
      return act_as(*p.first, s,
                    {.pause_at = p.first_at, .pause_at_name = p.first_at_name, .pause = [&] {
                       wire.tell();
                       wire.listen(kLimitMs);
                     }});
    });
    out.reached = held_up.listen(kLimitMs) != 0;
    Child second = start(*p.second, s, p.second_at);
    const int end = second.wait(kLimitMs);
    // Beside another it may find less room, or a key that is there: only what must not be counts.
    EXPECT_TRUE(end < kWrong && end != -1000 && (end >= 0 || end == -SIGKILL))
        << "the second ended with " << end;
    out.died = end == -SIGKILL;
    EXPECT_EQ(kvshm_reap(s.a, nullptr), 0);
    if (out.reached) held_up.tell();
    const int rc = held_up.wait(kLimitMs);
    EXPECT_TRUE(rc >= 0 && rc < kWrong) << "the first ended with " << rc;
    s.clear_up(false);
    for (const Op* op : {p.first, p.second}) look_after(*op, s);
    s.check(0xf);  // where one finds no room, it evicts
  }
  out.problems = failures();
  return out;
}

Outcome run_script(const Script& script) {
  Outcome out;
  {
    Scene s;
    if (script.first.setup) script.first.setup(s);
    Child held_up([&](Wire& wire) {
      return act_as(script.first, s, {.pause_at_name = script.at, .pause = [&] {
                                        wire.tell();
                                        wire.listen(kLimitMs);
                                      }});
    });
    out.reached = held_up.listen(kLimitMs) != 0;
    EXPECT_TRUE(out.reached) << "it does not come to " << script.at;
    if (script.meanwhile) script.meanwhile(s);
    held_up.tell();
    const int rc = held_up.wait(kLimitMs);
    EXPECT_TRUE(rc >= 0 && rc < kWrong) << "it ended with " << rc;
    EXPECT_TRUE(rc == 0 || !script.ends_well) << "it ended with " << rc;
    if (script.afterwards) script.afterwards(s);
    s.close_second();
    s.clear_up(false);
    look_after(script.first, s);
    s.check(0xf);
  }
  out.problems = failures();
  return out;
}

}  // namespace kvshm_sweep
