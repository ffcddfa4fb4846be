#include "scene.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arena/build.hpp"
#include "poison.hpp"

namespace kvshm_fuzz {

using namespace kvshm;

// A small quarantine stays in the cache; the depth of a report's stacks is what costs.
extern "C" const char* __asan_default_options() {
  return "quarantine_size_mb=4:malloc_context_size=8";
}

void found(const char* what, long long a, long long b) {
  std::fprintf(stderr, "FOUND: %s (%lld, %lld)\n", what, a, b);
  std::abort();
}

void key_of(unsigned n, kvshm_key out) {  // well mixed, the same in every run
  std::uint64_t x = n + 1;
  for (unsigned half = 0; half < 2; half++) {
    x += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = x;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    std::memcpy(out + 8 * half, &z, 8);
  }
}

kvshm_options plain_options() {
  kvshm_options o = KVSHM_OPTIONS_INIT;
  o.flags = KVSHM_NO_HELPER;
  o.pin = o.huge = KVSHM_OFF;
  o.timeout_ms = 50;
  o.label = "fuzz";
  return o;
}

namespace {

void must(std::int64_t rc, const char* what) {
  if (rc < 0) found(what, rc);
}

void bring(kvshm_arena& shell, Mode mode, const kvshm_options& o) {
  shell.fork_generation = fork_generation();
  must(bring_up(mode, host::kName, o, &shell.impl), "the scene cannot be set");
}

// READY under these keys, held by a; a chain if there is more than one.
std::vector<kvshm_handle> make(kvshm_arena* a, unsigned first, unsigned n) {
  std::vector<kvshm_handle> h(n);
  std::vector<std::uint8_t> keys(16 * n);
  auto* k = reinterpret_cast<kvshm_key*>(keys.data());
  for (unsigned i = 0; i < n; i++) key_of(first + i, k[i]);
  must(kvshm_allocate(a, n, k, nullptr, h.data(), nullptr, nullptr), "allocate");
  must(kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), nullptr), "register");
  return h;
}

std::vector<kvshm_handle> fill(kvshm_arena* a, unsigned first, unsigned n, unsigned parts) {
  std::vector<kvshm_handle> h(n);
  std::vector<std::uint8_t> keys(16 * n);
  auto* k = reinterpret_cast<kvshm_key*>(keys.data());
  for (unsigned i = 0; i < n; i++) key_of(first + i, k[i]);
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  o.parts = parts;
  must(kvshm_allocate(a, n, k, &o, h.data(), nullptr, nullptr), "allocate");
  return h;
}

}  // namespace

Scene& Scene::get() {
  static Scene s;
  return s;
}

Scene::Scene() {
  host::Inside in;
  kvshm_options o = plain_options();
  o.blocks = kBlocks;
  o.block_bytes = kBlockBytes;
  o.timeout_ms = 10000;
  kvshm_identity id = KVSHM_IDENTITY_INIT;
  id.model = "fuzz/model";
  id.weights = "w";
  id.block_tokens = 16;
  o.identity = &id;
  bring(other_, Mode::kCreate, o);
  geometry_ = other_.impl->geometry;
  populate();
  golden_.reset(new std::byte[geometry_.data_off]);
  raw_copy(golden_.get(), host::memory(), geometry_.data_off);
  prohibit();
  mark_ = host::mark();
  descriptors_ = host::descriptors();
  mappings_ = host::mappings();
  locks_ = host::locks();
  kvshm_stats s{};
  s.size = sizeof s;
  must(kvshm_get_stats(&other_, &s), "stats");
  held = s.blocks_held;
  filling = s.blocks_filling;
  dirty_.reserve(4096);
  set_step_hook(at_step, this);
  // Lines are made of what lies in the arena, too.
  kvshm_set_log([](int, const char* line, void*) { (void)std::strlen(line); }, nullptr);
}

void Scene::populate() {
  kvshm_arena* a = &other_;
  const kvshm_options o = plain_options();
  static kvshm_arena between, dying;  // slots 1 and 2: the one under test comes in between
  bring(between, Mode::kAttach, o);
  bring(dying, Mode::kAttach, o);

  const auto chain = make(a, 0, 24), branch = make(a, 24, 6);
  kvshm_set_priority(a, chain[5], 100);
  kvshm_drop(a, branch.data(), 6);
  kvshm_drop(a, chain.data(), 24);
  const auto mine = make(a, 30, 4);
  const auto filled = fill(a, 34, 2, 2);
  kvshm_fill_begin(a, filled[0], 0);
  make(a, 30, 1);  // a duplicate
  const auto last = make(a, 36, 1);
  kvshm_set_no_cache(a, last[0], 1);
  kvshm_key k;
  key_of(42, k);
  kvshm_object* object = nullptr;
  must(kvshm_object_create(a, k, 700, nullptr, &object), "object");
  must(kvshm_object_commit(object), "commit");
  kvshm_object_close(object);
  kvshm_mark_victims(a, chain.data() + 20, 3);

  const auto theirs = make(&dying, 37, 3);
  kvshm_set_no_cache(&dying, theirs[2], 1);
  const auto left = fill(&dying, 40, 2, 1);
  std::uint32_t ids[4];
  kvshm_lease lease;
  kvshm_key held_keys[4];
  for (unsigned i = 0; i < 4; i++) key_of(i, held_keys[i]);
  kvshm_match(&dying, held_keys, 4, ids, &lease);
  kvshm_fill_join(&dying, filled[1]);
  const auto half = make(&dying, 43, 1);  // it died in the middle of an eviction
  kvshm_drop(&dying, half.data(), 1);
  Arena& d = *dying.impl;
  auto& word = d.hot[half[0].id].word;
  word.store(with_state(word.load(), kEvicting) | d.me);

  for (const auto* list : {&chain, &branch, &mine, &filled, &last, &theirs, &left, &half})
    handles_.insert(handles_.end(), list->begin(), list->end());
  must(kvshm_close(&between, 0), "close");
  host::drop_mapping(d.anchor);  // a SIGKILL: the kernel drops the life byte, and no more
  host::drop_mapping(d.base);
  host::drop_mapping(d.counts);
  d.anchor = nullptr;
  d.base = nullptr;
  d.counts = nullptr;
}

void Scene::prohibit() {
  std::byte* m = host::memory();
  const Geometry& g = geometry_;
  auto rest = [&](std::uint64_t from, std::uint64_t to) { poison(m + from, to - from); };
  rest(g.slots_off + kSlots * sizeof(SlotRecord), g.regions_off);
  rest(g.regions_off + g.region_words * 8 * kSlots, g.hot_off);
  rest(g.hot_off + g.blocks * sizeof(Hot), g.cold_off);
  rest(g.cold_off + g.blocks * sizeof(Cold), g.index_off);
  rest(g.index_off + g.buckets * kIndexWays * 8, g.free_off);
  rest(g.summary_off + g.region_words * 8, g.ghost_off);
  rest(g.ghost_off + ghost_places(g.blocks) * sizeof(Ghost), g.uses_off);
  rest(g.uses_off + uses_lines(g.blocks) * sizeof(UsesLine), g.shadow_off);
  rest(g.shadow_off + shadow_bytes(g.blocks), g.tenants_off);
  rest(g.tenants_off + kTenants * sizeof(Tenant), g.marks_off);
  rest(g.events_off, g.queues_off);
  rest(g.queues_off + sizeof(Queues), g.data_off);
}

void Scene::reshaped() {
  reshaped_ = true;
  unpoison(host::memory(), host::size());
}

void Scene::put_back(std::size_t offset, std::size_t n) {
  std::memcpy(host::memory() + offset, golden_.get() + offset, n);
}

void Scene::compare() {
  const std::size_t at = raw_difference(host::memory(), golden_.get(), geometry_.data_off);
  if (at != geometry_.data_off) found("a reset has not put everything back", (long long)at);
}

void Scene::reset() {
  const Geometry& g = geometry_;
  const host::Mark now = host::mark();
  later_ = nullptr;
  if (reshaped_ || now.ino != mark_.ino || now.size != mark_.size) {
    host::restore(mark_);
    unpoison(host::memory(), g.data_off);
    put_back(0, g.data_off);
    prohibit();
    reshaped_ = false;
  } else {
    host::restore(mark_);
    put_back(0, sizeof(Superblock));
    for (unsigned s = 0; s < kSlots; s++)
      put_back(g.slots_off + s * sizeof(SlotRecord), offsetof(SlotRecord, stats));
    put_back(g.slots_off + slot_ * sizeof(SlotRecord), sizeof(SlotRecord));
    put_back(g.regions_off, g.region_words * 8 * kSlots);
    put_back(g.hot_off, g.blocks * sizeof(Hot));
    put_back(g.cold_off, g.blocks * sizeof(Cold));
    put_back(g.index_off, g.buckets * kIndexWays * 8);
    put_back(g.free_off, g.summary_off - g.free_off);
    put_back(g.summary_off, g.region_words * 8);
    put_back(g.ghost_off, ghost_places(g.blocks) * sizeof(Ghost));
    put_back(g.uses_off, uses_lines(g.blocks) * sizeof(UsesLine));
    put_back(g.shadow_off, shadow_bytes(g.blocks));
    put_back(g.tenants_off, kTenants * sizeof(Tenant));
    if (marks_dirty_) put_back(g.marks_off, g.events_off - g.marks_off);
    // With another rule of the mover's, calls of every kind offer blocks.
    const std::size_t rule = g.queues_off + sizeof(MoverNote);
    for (const auto& [offset, n] : dirty_)
      if (offset < rule && offset + n > g.queues_off) {
        put_back(g.queues_off, sizeof(Queues));
        break;
      }
    for (const auto& [offset, n] : dirty_)
      raw_copy(host::memory() + offset, golden_.get() + offset, n);
  }
  dirty_.clear();
  marks_dirty_ = false;
  if (++resets_ % 65536 == 1) compare();
}

void Scene::write(std::size_t offset, const void* p, std::size_t n) {
  if (offset >= geometry_.data_off) return;
  if (n > geometry_.data_off - offset) n = geometry_.data_off - offset;
  raw_copy(host::memory() + offset, p, n);
  dirty_.emplace_back(std::uint32_t(offset), std::uint32_t(n));
}

void Scene::damage_later(Feed& f, unsigned n) {
  later_ = &f;
  steps_left_ = n + 1;
}

void Scene::at_step(const char*, void* self) {
  Scene& s = *static_cast<Scene*>(self);
  if (!s.later_ || --s.steps_left_) return;
  Feed& f = *s.later_;
  s.later_ = nullptr;
  s.damage(f);
}

int Scene::attach(Mode mode, const kvshm_options& o) {
  victim_.fork_generation = fork_generation();
  victim_.closing.store(false);
  std::unique_ptr<Arena> made;
  const int rc = bring_up(mode, host::kName, o, &made);
  if (rc == 0) {
    slot_ = made->slot;
    victim_.impl = std::move(made);
  }
  return rc;
}

void Scene::close() {
  later_ = nullptr;
  if (attached())
    if (int rc = kvshm_close(&victim_, 0)) found("close is refused", rc);
  if (host::descriptors() != descriptors_) found("descriptors left open", host::descriptors());
  if (host::mappings() != mappings_) found("mappings left behind", host::mappings());
  if (host::locks() != locks_) found("locks left behind", host::locks(), locks_);
}

}  // namespace kvshm_fuzz
