// SPDX-License-Identifier: Apache-2.0
// Files of a tier that were damaged: bits, pages, slots, records, their length. What is bad is a miss,
// its neighbours are served, and nothing of it keeps a tier from starting.
#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <set>

#include "arena/lock.hpp"
#include "tier/record.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;
using kvshm::tier::kPageBytes;
using kvshm::tier::Record;
using kvshm::tier::Superblock;

// The file as docs/format.md has it, read and written beside its users.
class Raw {
 public:
  explicit Raw(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    Superblock b;
    get(0, &head, sizeof head);
    get(kPageBytes, &b, sizeof b);
    if (b.magic == kvshm::tier::kMagic && b.sequence > head.sequence) head = b;
    for (std::uint64_t s = 0; s < head.slots; s++) {
      const Record r = record(s);
      block_key k;
      std::memcpy(k.data(), r.key, 16);
      if (kvshm::tier::sound(r, s)) slots[k] = s;
    }
  }
  ~Raw() { fsync(fd_.get()); }
  void get(std::uint64_t at, void* to, std::size_t n) const {
    EXPECT_EQ(pread(fd_.get(), to, n, off_t(at)), ssize_t(n)) << at;
  }
  void put(std::uint64_t at, const void* from, std::size_t n) const {
    EXPECT_EQ(pwrite(fd_.get(), from, n, off_t(at)), ssize_t(n)) << at;
  }
  void flip(std::uint64_t at, unsigned bit) const {
    char c;
    get(at, &c, 1);
    c = char(c ^ 1 << bit);
    put(at, &c, 1);
  }
  std::uint64_t record_at(std::uint64_t s) const {
    return head.records_offset + s * sizeof(Record);
  }
  std::uint64_t data_at(std::uint64_t s) const { return head.data_offset + s * head.slot_bytes; }
  Record record(std::uint64_t s) const {
    Record r;
    get(record_at(s), &r, sizeof r);
    return r;
  }
  void copy(std::uint64_t from, std::uint64_t to) const {
    std::vector<char> data(head.slot_bytes);
    get(data_at(from), data.data(), data.size());
    put(data_at(to), data.data(), data.size());
  }
  std::uint64_t size() const {
    struct stat st;
    fstat(fd_.get(), &st);
    return std::uint64_t(st.st_size);
  }
  void cut(std::uint64_t bytes) const { EXPECT_EQ(ftruncate(fd_.get(), off_t(bytes)), 0); }

  Superblock head{};
  std::map<block_key, std::uint64_t> slots;  // where each key lies

 private:
  kvshm::File fd_;
};

// No chain: a miss hides no other.
void cache_each(kvshm_arena* a, const keys_t& keys) {
  for (const block_key& k : keys) make_cached(a, k);
}
std::set<std::size_t> served(kvshm_arena* a, const keys_t& keys) {
  std::set<std::size_t> right;
  EXPECT_GE(kvshm_clear(a), 0);
  for (std::size_t i = 0; i < keys.size(); i++) {
    const Loaded l = load_chain(a, {keys[i]});
    EXPECT_EQ(l.held, std::int64_t(l.right)) << "wrong bytes of key " << i;
    if (l.right) right.insert(i);
  }
  return right;
}

std::vector<std::string> lines;
void keep(int, const char* line, void*) { lines.push_back(line); }

class TierDamage : public testing::TestWithParam<std::uint32_t> {  // O_DIRECT or not
 protected:
  TierDamage() : file_("damage") {}
  ~TierDamage() override { kvshm_set_log(nullptr, nullptr); }
  // All processes end, and shared memory is gone.
  void reboot() {
    if (pool_) {
      const std::string image = pool_->name + "-g3";
      pool_->leave();
      kvshm_remove(image.c_str(), nullptr, 1);
      pool_.reset();
    }
  }
  void start(std::uint64_t bytes = 0) {
    reboot();
    pool_ = std::make_unique<Pool>(Spec{kKeys + 16, kBytes});
    TierSpec s;
    s.direct = GetParam();
    s.bytes = bytes ? bytes : (kKeys + 40) * kBytes;
    ASSERT_EQ(open_tier(pool_->a, file_.path, s), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool_->a));
  }
  void fill() {
    start();
    cache_each(pool_->a, keys_);
    ASSERT_EQ(kvshm_tier_drain(pool_->a, 20000), 0);
    ASSERT_EQ(tier_of(pool_->a).slots_ready, kKeys);
  }
  std::uint64_t damaged() { return stats(pool_->a).tier_damaged_total; }

  static constexpr std::uint64_t kKeys = 300, kBytes = 8192;
  TierFile file_;
  std::unique_ptr<Pool> pool_;
  keys_t keys_ = keys_of(1, kKeys);
};

// Item 55. What was damaged is stored anew afterwards.
TEST_P(TierDamage, IsAMissOnce) {
  fill();
  std::set<std::size_t> bad;
  {
    Raw raw(file_.path);
    ASSERT_EQ(raw.slots.size(), kKeys);
    const auto slot = [&](std::size_t i) {
      bad.insert(i);
      return raw.slots.at(keys_[i]);
    };
    for (unsigned i = 0; i < 10; i++) raw.flip(raw.data_at(slot(i * 20)) + i * 800, i % 8);
    const std::uint64_t a = slot(201), b = slot(202), spare = raw.head.slots - 1;
    raw.copy(a, spare);  // nobody's
    raw.copy(b, a);
    raw.copy(spare, b);
    const std::vector<char> zeros(kPageBytes);
    raw.put(raw.data_at(slot(203)) + kPageBytes, zeros.data(), zeros.size());
    raw.copy(raw.slots.at(keys_[205]), slot(204));  // a valid block, of another key
  }
  kvshm_set_log(keep, nullptr);
  lines.clear();
  std::set<std::size_t> right = served(pool_->a, keys_);
  for (std::size_t i = 0; i < kKeys; i++) EXPECT_NE(right.count(i), bad.count(i)) << i;
  EXPECT_EQ(damaged(), bad.size());
  EXPECT_EQ(lines.size(), bad.size()) << "each is told of once";
  EXPECT_EQ(tier_of(pool_->a).slots_ready, kKeys - bad.size());
  EXPECT_EQ(served(pool_->a, keys_), right);
  EXPECT_EQ(damaged(), bad.size()) << "and not tried again";
  cache_each(pool_->a, keys_);
  ASSERT_EQ(kvshm_tier_drain(pool_->a, 20000), 0);
  EXPECT_EQ(served(pool_->a, keys_).size(), kKeys);
  EXPECT_EQ(broken_image(pool_->a), "");
}

// The same between two lives, records included.
TEST_P(TierDamage, BetweenTwoLives) {
  fill();
  std::set<std::size_t> bad;
  reboot();
  {
    Raw raw(file_.path);
    const auto slot = [&](std::size_t i) {
      bad.insert(i);
      return raw.slots.at(keys_[i]);
    };
    raw.flip(raw.data_at(slot(3)) + 77, 5);
    for (std::size_t i = 4; i < 20; i++) raw.flip(raw.record_at(slot(i)) + i * 3, i % 8);
    // A record in another's place says where it belongs; it comes first, and would be believed.
    const std::size_t first = raw.slots.at(keys_[30]) < raw.slots.at(keys_[31]) ? 30 : 31;
    const Record r = raw.record(raw.slots.at(keys_[61 - first]));
    raw.put(raw.record_at(slot(first)), &r, sizeof r);
    // A whole slot in another's place, likewise.
    const std::uint64_t from = raw.slots.at(keys_[40]), to = slot(41);
    const Record whole = raw.record(from);
    raw.put(raw.record_at(to), &whole, sizeof whole);
    raw.copy(from, to);
    // A superblock torn: the other copy is there.
    raw.flip(raw.head.sequence % 2 * kPageBytes + 50, 1);
  }
  start();
  const std::set<std::size_t> right = served(pool_->a, keys_);
  for (std::size_t i = 0; i < kKeys; i++) EXPECT_NE(right.count(i), bad.count(i)) << i;
}

// Item 62: while it is open.
TEST_P(TierDamage, CutUnderneath) {
  for (const int how : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(how);
    fill();
    std::uint64_t last = 0;
    {
      Raw raw(file_.path);
      for (auto& [key, s] : raw.slots) last = std::max(last, s);
      const std::uint64_t to[] = {0, 2 * kPageBytes, raw.data_at(last),
                                  raw.size() + raw.head.slot_bytes, raw.data_at(last) + 100};
      raw.cut(to[how]);
    }
    const std::size_t n = served(pool_->a, keys_).size();
    EXPECT_EQ(n, how < 2 ? 0 : how == 3 ? kKeys : kKeys - 1);
    EXPECT_EQ(damaged(), kKeys - n);
    // It grows again by what is stored.
    cache_each(pool_->a, keys_);
    ASSERT_EQ(kvshm_tier_drain(pool_->a, 20000), 0);
    EXPECT_EQ(tier_of(pool_->a).state, KVSHM_TIER_OK);
    EXPECT_EQ(served(pool_->a, keys_).size(), kKeys);
    reboot();
    unlink(file_.path.c_str());
  }
}

// And before it is opened: it starts, with what is left.
TEST_P(TierDamage, CutBefore) {
  for (const int how : {0, 1, 2, 3, 4, 5, 6, 7}) {
    SCOPED_TRACE(how);
    fill();
    if (how < 4) start();  // adopted once more: now both superblocks are written
    reboot();
    std::uint64_t last = 0;
    {
      Raw raw(file_.path);
      for (auto& [key, s] : raw.slots) last = std::max(last, s);
      const std::uint64_t to[] = {0,
                                  1,
                                  5,
                                  100,
                                  2 * kPageBytes,
                                  raw.data_at(last),
                                  raw.size() + raw.head.slot_bytes,
                                  raw.size() + 100};
      raw.cut(to[how]);
      const std::string garbage(100, 'x');
      if (how == 7) raw.put(raw.size() - 100, garbage.data(), 100);
    }
    start();
    const std::size_t n = served(pool_->a, keys_).size();
    EXPECT_EQ(n, how < 5 ? 0 : how > 5 ? kKeys : kKeys - 1);
    cache_each(pool_->a, keys_);
    ASSERT_EQ(kvshm_tier_drain(pool_->a, 20000), 0);
    EXPECT_EQ(served(pool_->a, keys_).size(), kKeys);
    reboot();
    unlink(file_.path.c_str());
  }
}

// Somebody removes the file: who has it open goes on; who comes is told.
TEST_P(TierDamage, RemovedUnderneath) {
  fill();
  unlink(file_.path.c_str());
  EXPECT_EQ(served(pool_->a, keys_).size(), kKeys);
  kvshm_arena* other = pool_->another();
  TierSpec s;
  s.direct = GetParam();
  s.bytes = (kKeys + 40) * kBytes;
  EXPECT_EQ(open_tier(other, file_.path, s), -KVSHM_EINUSE);
  EXPECT_NE(std::string(kvshm_last_error()).find("replaced"), std::string::npos)
      << kvshm_last_error();
  start();
  EXPECT_EQ(tier_of(pool_->a).slots_ready, 0u);
}

// What is said of a key is so: item 56. A small tier, which evicts all the time.
TEST_P(TierDamage, PresenceIsTrue) {
  start(100 * kBytes);
  std::uint64_t there = 0;
  for (std::uint64_t round = 0; round < 20; round++) {
    cache_each(pool_->a, keys_of(1 + round * 40, 40));
    ASSERT_EQ(kvshm_tier_drain(pool_->a, 20000), 0);
    if (round % 3 == 0) kvshm_clear(pool_->a);
    for (std::uint64_t k = 1; k <= (round + 1) * 40; k += 7) {
      std::uint8_t mask = 0;
      const block_key key = key_of(k);
      ASSERT_GE(kvshm_presence(pool_->a, raw(key), 1, &mask), 0);
      const Loaded l = load_chain(pool_->a, {key});
      EXPECT_EQ(l.right, mask & (KVSHM_IN_G2 | KVSHM_IN_G3) ? 1u : 0u) << k;
      there += l.right;
    }
  }
  EXPECT_GT(there, 200u);
}

INSTANTIATE_TEST_SUITE_P(Files, TierDamage, testing::Values(KVSHM_AUTO, KVSHM_OFF),
                         [](const auto& i) {
                           return i.param == KVSHM_OFF ? "Buffered" : "Direct";
                         });

}  // namespace
