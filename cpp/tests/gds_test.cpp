// SPDX-License-Identifier: Apache-2.0
// The tier's direct path to a device, and its fall-back, on a driver and a cuFile that are not there
// (tests/device/native/fake_cuda.c, fake_cufile.c): files are real, device memory is the host's.
#include "tier/gds.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "support.hpp"
#include "tier/record.hpp"
#include "tier_support.hpp"

using namespace kvshm_test;
using kvshm::tier::Extent;

namespace {

constexpr std::uint32_t kSlot = 64 << 10, kBytes = kSlot - 1000, kSlots = 32;

void fails(const char* how) {
  if (*how)
    setenv("KVSHM_FAKE_CUFILE", how, 1);
  else
    unsetenv("KVSHM_FAKE_CUFILE");
}

// What the process has tried once stays: some tests want a new one. True in it.
bool alone(const char* libraries = nullptr) {
  if (getenv("KVSHM_GDS_ALONE")) return true;
  const auto* now = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter =
      std::string("--gtest_filter=") + now->test_suite_name() + "." + now->name();
  const pid_t child = fork();
  if (child == 0) {
    setenv("KVSHM_GDS_ALONE", "1", 1);
    if (libraries) setenv("LD_LIBRARY_PATH", libraries, 1);
    execl("/proc/self/exe", "gds_test", filter.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "in a process of its own";
  return false;
}

class Gds : public ::testing::Test {
 protected:
  void SetUp() override {
    void* lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib || !dlsym(lib, "fake_own_context"))
      GTEST_SKIP() << "libcuda.so.1 is not the fake one: run it by ctest";
    setenv("KVSHM_FAKE_CUDA_DEVICES", "1", 1);
    fails("");
    const char* where = getenv("TMPDIR");
    std::string path = std::string(where ? where : "/tmp") + "/kvshm-gds-XXXXXX";
    file = mkstemp(path.data());
    ASSERT_GE(file, 0);
    unlink(path.c_str());
    std::vector<std::uint8_t> slot(kSlot);
    for (std::uint32_t s = 0; s < kSlots; s++) {
      for (std::uint32_t i = 0; i < kSlot; i++) slot[i] = byte(s, i);
      ASSERT_EQ(pwrite(file, slot.data(), kSlot, kSlot * s), ssize_t(kSlot));
    }
    options = KVSHM_GDS_OPTIONS_INIT;
    device.resize(kSlots * kSlot);
    buffer = {at(0), device.size()};
    options.buffers = &buffer, options.nbuffers = 1;
  }
  void TearDown() override {
    gds.reset();
    if (file >= 0) close(file);
    if (void* lib = dlopen("libcufile.so.0", RTLD_NOW | RTLD_NOLOAD)) {
      const std::vector<long> now = seen(lib);
      EXPECT_EQ(now[2], 0) << "files left registered";
      EXPECT_EQ(now[3], 0) << "buffers left registered";
      EXPECT_EQ(now[4], 0) << "given back twice";
    }
  }
  static std::vector<long> seen(void* lib) {
    std::vector<long> out(5);
    if (auto f = reinterpret_cast<void (*)(long*)>(dlsym(lib, "fake_cufile_seen"))) f(out.data());
    return out;
  }
  static std::uint8_t byte(std::uint32_t slot, std::uint32_t i) {
    return std::uint8_t(slot * 37 + i * 13 + i / 4096);
  }
  std::uint64_t at(std::uint64_t offset) {
    return reinterpret_cast<std::uint64_t>(device.data()) + offset;
  }
  static Extent extent(std::uint32_t slot) {
    Extent e;
    e.offset = std::uint64_t(slot) * kSlot, e.bytes = kBytes;
    std::vector<std::uint8_t> data(kBytes);
    for (std::uint32_t i = 0; i < kBytes; i++) data[i] = byte(slot, i);
    kvshm::tier::payload_check(data.data(), kBytes, e.check);
    return e;
  }
  // Slot s in three pieces, the last first, with room between them on the device.
  std::vector<kvshm_gds_piece> pieces(std::uint32_t s) {
    const std::uint64_t to = std::uint64_t(s) * kSlot;
    return {{at(to + 40900), kBytes - 40000, 40000},
            {at(to), 4096, 0},
            {at(to + 4500), 40000 - 4096, 4096}};
  }
  bool arrived(std::uint32_t s) {
    for (const kvshm_gds_piece& p : pieces(s))
      for (std::uint64_t i = 0; i < p.bytes; i++)
        if (device[p.address - at(0) + i] != byte(s, std::uint32_t(p.offset + i))) return false;
    return true;
  }
  int open(std::uint32_t load = KVSHM_AUTO, std::uint32_t store = KVSHM_OFF) {
    options.load = load, options.store = store;
    kvshm::tier::GdsFiles files;
    files.files = {file}, files.slot_bytes = kSlot;
    return kvshm::tier::Gds::open(files, options, &gds);
  }
  int load(std::uint32_t s) {
    const auto p = pieces(s);
    std::fill(device.begin() + s * kSlot, device.begin() + (s + 1) * kSlot, 0);
    return gds->load(extent(s), p.data(), std::uint32_t(p.size()));
  }
  kvshm_gds status() {
    auto s = sized<kvshm_gds>();
    gds->describe(&s);
    return s;
  }
  void spoil(std::uint32_t s) {
    const char wrong = 77;
    ASSERT_EQ(pwrite(file, &wrong, 1, off_t(s) * kSlot + 50000), 1);
  }
  // Refused from the start: the host path serves, and says why.
  void goes_by_the_host(const char* why) {
    EXPECT_EQ(open(KVSHM_REQUIRE), -KVSHM_EUNSUPPORTED);
    EXPECT_NE(std::strstr(kvshm_last_error(), why), nullptr) << kvshm_last_error();
    EXPECT_EQ(gds, nullptr);
    ASSERT_EQ(open(KVSHM_AUTO, KVSHM_AUTO), 0) << kvshm_last_error();
    for (std::uint32_t s = 0; s < 4; s++) {
      EXPECT_EQ(load(s), 0) << kvshm_last_error();
      EXPECT_TRUE(arrived(s)) << s;
    }
    const kvshm_gds now = status();
    EXPECT_EQ(now.load, std::uint32_t(KVSHM_GDS_HOST));
    EXPECT_EQ(now.store, std::uint32_t(KVSHM_GDS_HOST));
    EXPECT_EQ(now.loads[KVSHM_GDS_HOST], 4u);
    EXPECT_EQ(now.loads[KVSHM_GDS_DIRECT], 0u);
    EXPECT_EQ(now.switches, 0u);
    EXPECT_NE(std::strstr(now.why, why), nullptr) << now.why;
    EXPECT_EQ(now.buffers, 0u);
    EXPECT_EQ(now.stage_pinned, 1u);
  }

  int file = -1;
  std::vector<std::uint8_t> device;
  kvshm_gds_buffer buffer{};
  kvshm_gds_options options{};
  std::unique_ptr<kvshm::tier::Gds> gds;
};

TEST_F(Gds, DirectBothWays) {
  ASSERT_EQ(open(KVSHM_REQUIRE, KVSHM_REQUIRE), 0) << kvshm_last_error();
  for (std::uint32_t s = 0; s < kSlots; s++) {
    ASSERT_EQ(load(s), 0) << kvshm_last_error();
    ASSERT_TRUE(arrived(s)) << s;
  }
  // From the device to other slots, and back from there by another path.
  for (std::uint32_t s = 0; s < 8; s++) {
    Extent e = extent(s);
    const std::uint64_t check = e.check[0];
    e.offset = std::uint64_t(s + 16) * kSlot, e.check[0] = e.check[1] = 0;
    const auto p = pieces(s);
    ASSERT_EQ(gds->store(&e, p.data(), 3), 0) << kvshm_last_error();
    EXPECT_EQ(e.check[0], check);
    std::vector<std::uint8_t> back(kBytes);
    ASSERT_EQ(pread(file, back.data(), kBytes, off_t(e.offset)), ssize_t(kBytes));
    for (std::uint32_t i = 0; i < kBytes; i++) ASSERT_EQ(back[i], byte(s, i)) << i;
  }
  const kvshm_gds now = status();
  EXPECT_EQ(now.load, std::uint32_t(KVSHM_GDS_DIRECT));
  EXPECT_EQ(now.store, std::uint32_t(KVSHM_GDS_DIRECT));
  EXPECT_EQ(now.loads[KVSHM_GDS_DIRECT], kSlots);
  EXPECT_EQ(now.load_bytes[KVSHM_GDS_DIRECT], std::uint64_t(kSlots) * kBytes);
  EXPECT_EQ(now.stores[KVSHM_GDS_DIRECT], 8u);
  EXPECT_EQ(now.loads[KVSHM_GDS_HOST] + now.stores[KVSHM_GDS_HOST], 0u);
  EXPECT_EQ(now.buffers, 1u);
  EXPECT_EQ(now.may_stage, 1u);
  EXPECT_STREQ(now.why, "");
}

TEST_F(Gds, OffIsByTheHostAndLooksForNothing) {
  fails("open");
  ASSERT_EQ(open(KVSHM_OFF, KVSHM_OFF), 0);
  ASSERT_EQ(load(3), 0) << kvshm_last_error();
  EXPECT_TRUE(arrived(3));
  const kvshm_gds now = status();
  EXPECT_EQ(now.load, std::uint32_t(KVSHM_GDS_HOST));
  EXPECT_STREQ(now.why, "");
}

TEST_F(Gds, TransfersThatComeInParts) {
  fails("short");
  ASSERT_EQ(open(KVSHM_REQUIRE), 0) << kvshm_last_error();
  ASSERT_EQ(load(5), 0) << kvshm_last_error();
  EXPECT_TRUE(arrived(5));
}

TEST_F(Gds, MemoryThatIsNotRegistered) {
  options.nbuffers = 0;
  ASSERT_EQ(open(KVSHM_REQUIRE), 0) << kvshm_last_error();
  ASSERT_EQ(load(5), 0) << kvshm_last_error();
  EXPECT_TRUE(arrived(5));
}

TEST_F(Gds, TheLibraryIsMissing) {
  if (alone(KVSHM_FAKE_CUDA)) goes_by_the_host("libcufile.so.0 cannot be loaded");
}

TEST_F(Gds, TheDriverIsMissing) {
  if (!alone()) return;
  setenv("KVSHM_FAKE_CUDA_DEVICES", "0", 1);
  EXPECT_EQ(open(KVSHM_REQUIRE), -KVSHM_EUNSUPPORTED);
  EXPECT_NE(std::strstr(kvshm_last_error(), "no CUDA-capable device"), nullptr);
  ASSERT_EQ(open(KVSHM_AUTO), 0);
  EXPECT_EQ(load(1), -KVSHM_EUNSUPPORTED);
  EXPECT_EQ(status().load, std::uint32_t(KVSHM_GDS_HOST));
  EXPECT_NE(std::strstr(status().why, "no CUDA-capable device"), nullptr) << status().why;
}

TEST_F(Gds, OpeningTheDriverFails) {
  if (!alone()) return;
  fails("open");
  goes_by_the_host("cuFileDriverOpen: the nvidia-fs driver is not loaded (5001)");
}

// As libcufile 1.19 does on a host without a GPU.
TEST_F(Gds, OpeningTheDriverDoesNotReturn) {
  if (!alone()) return;
  fails("hang");
  options.timeout_ms = 50;
  goes_by_the_host("has not returned in 50 ms");
  fails("");  // it comes back after all
  options.timeout_ms = 20000;
  gds.reset();
  ASSERT_EQ(open(KVSHM_REQUIRE), 0) << kvshm_last_error();
}

TEST_F(Gds, ItWouldCopyByTheHostItself) {
  fails("compat");
  goes_by_the_host("compatibility mode");
}

TEST_F(Gds, RegisteringAFileFails) {
  fails("handle");
  goes_by_the_host("cuFileHandleRegister of file 0: not supported on this file (5008)");
}

TEST_F(Gds, RegisteringABufferFails) {
  fails("buffer");
  goes_by_the_host("cuFileBufRegister of buffer 0: memory of the GPU cannot be pinned (5036)");
}

// Three calls a block: the 34th load is the first to fail.
TEST_F(Gds, TheHundredthReadFails) {
  if (!alone()) return;
  fails("read=100");
  ASSERT_EQ(open(KVSHM_AUTO, KVSHM_AUTO), 0) << kvshm_last_error();
  for (std::uint32_t i = 0; i < 60; i++) {
    const std::uint32_t s = i % kSlots;
    ASSERT_EQ(load(s), 0) << i << kvshm_last_error();
    ASSERT_TRUE(arrived(s)) << i;
    EXPECT_EQ(status().load, std::uint32_t(i < 33 ? KVSHM_GDS_DIRECT : KVSHM_GDS_HOST)) << i;
  }
  const kvshm_gds now = status();
  EXPECT_EQ(now.loads[KVSHM_GDS_DIRECT], 33u);
  EXPECT_EQ(now.loads[KVSHM_GDS_HOST], 27u);
  EXPECT_EQ(now.switches, 1u);
  EXPECT_EQ(now.store, std::uint32_t(KVSHM_GDS_DIRECT)) << "the other direction stays";
  EXPECT_NE(std::strstr(now.why, "cuFileRead: Input/output error"), nullptr) << now.why;
}

TEST_F(Gds, TheHundredthReadFailsAmongThreads) {
  if (!alone()) return;
  fails("read=100");
  ASSERT_EQ(open(), 0) << kvshm_last_error();
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; t++)
    threads.emplace_back([this, t] {
      for (std::uint32_t i = 0; i < 40; i++) {
        const std::uint32_t s = t * 8 + i % 8;
        EXPECT_EQ(load(s), 0) << kvshm_last_error();
        EXPECT_TRUE(arrived(s)) << i;
      }
    });
  for (std::thread& t : threads) t.join();
  const kvshm_gds now = status();
  EXPECT_EQ(now.loads[KVSHM_GDS_DIRECT] + now.loads[KVSHM_GDS_HOST], 160u);
  EXPECT_EQ(now.switches, 1u);
}

TEST_F(Gds, RequiredAndFailingIsAnError) {
  if (!alone()) return;
  fails("read=1,write=1");
  ASSERT_EQ(open(KVSHM_REQUIRE, KVSHM_REQUIRE), 0) << kvshm_last_error();
  EXPECT_EQ(load(0), -EIO);
  EXPECT_NE(std::strstr(kvshm_last_error(), "an I/O error (5044)"), nullptr) << kvshm_last_error();
  Extent e = extent(0);
  const auto p = pieces(0);
  EXPECT_EQ(gds->store(&e, p.data(), 3), -EIO);
  EXPECT_EQ(status().load, std::uint32_t(KVSHM_GDS_DIRECT));
  EXPECT_EQ(status().switches, 0u);
}

TEST_F(Gds, AStoreThatFailsGoesByTheHost) {
  if (!alone()) return;
  fails("write=5");
  ASSERT_EQ(open(KVSHM_AUTO, KVSHM_AUTO), 0) << kvshm_last_error();
  for (std::uint32_t s = 0; s < 8; s++) {
    ASSERT_EQ(load(s), 0);
    Extent e = extent(s);
    e.offset = std::uint64_t(s + 16) * kSlot;
    const auto p = pieces(s);
    ASSERT_EQ(gds->store(&e, p.data(), 3), 0) << kvshm_last_error();
    std::fill(device.begin(), device.end(), 0);
    ASSERT_EQ(gds->load(e, p.data(), 3), 0) << kvshm_last_error();
    EXPECT_TRUE(arrived(s)) << s;
  }
  const kvshm_gds now = status();
  EXPECT_EQ(now.stores[KVSHM_GDS_DIRECT], 1u);
  EXPECT_EQ(now.stores[KVSHM_GDS_HOST], 7u);
  EXPECT_EQ(now.load, std::uint32_t(KVSHM_GDS_DIRECT));
}

// Wrong bytes on the drive are a miss by either path, and no reason to leave the direct one.
TEST_F(Gds, ASpoiltSlotIsAMiss) {
  spoil(7);
  ASSERT_EQ(open(), 0) << kvshm_last_error();
  EXPECT_EQ(load(7), -EBADMSG);
  EXPECT_EQ(status().load, std::uint32_t(KVSHM_GDS_DIRECT));
  EXPECT_EQ(load(8), 0);
  EXPECT_EQ(status().loads[KVSHM_GDS_DIRECT], 1u);
  gds.reset();
  ASSERT_EQ(open(KVSHM_REQUIRE), 0);
  EXPECT_EQ(load(7), -EBADMSG);
  gds.reset();
  ASSERT_EQ(open(KVSHM_OFF), 0);
  EXPECT_EQ(load(7), -EBADMSG);
}

// Right on the drive, wrong on the device: the direct path is to blame, and left.
TEST_F(Gds, ADirectPathThatBringsWrongBytes) {
  if (!alone()) return;
  fails("wrong=5");
  ASSERT_EQ(open(), 0) << kvshm_last_error();
  for (std::uint32_t s = 0; s < 4; s++) {
    EXPECT_EQ(load(s), 0) << kvshm_last_error();
    EXPECT_TRUE(arrived(s)) << s;
  }
  EXPECT_EQ(status().loads[KVSHM_GDS_DIRECT], 1u);
  EXPECT_EQ(status().switches, 1u);
}

// The control: what verifying is for.
TEST_F(Gds, TrustServesWhatIsThere) {
  spoil(7);
  options.flags = KVSHM_GDS_TRUST;
  ASSERT_EQ(open(), 0) << kvshm_last_error();
  EXPECT_EQ(load(7), 0);
  EXPECT_FALSE(arrived(7));
}

// A rank's part of a block: the rest is read by the host, for the checksum is of all of it.
TEST_F(Gds, APartOfABlock) {
  for (const char* how : {"", "handle"}) {
    fails(how);
    ASSERT_EQ(open(), 0);
    std::fill(device.begin(), device.end(), 0);
    const kvshm_gds_piece p = {at(100), 5000, 20000};
    ASSERT_EQ(gds->load(extent(2), &p, 1), 0) << kvshm_last_error();
    for (std::uint32_t i = 0; i < 5000; i++) ASSERT_EQ(device[100 + i], byte(2, 20000 + i));
    EXPECT_EQ(device[99] | device[5100], 0);
    EXPECT_EQ(status().load_bytes[*how ? KVSHM_GDS_HOST : KVSHM_GDS_DIRECT], 5000u);
    Extent e = extent(2);
    EXPECT_EQ(gds->store(&e, &p, 1), -EINVAL);
    gds.reset();
  }
}

TEST_F(Gds, SenselessPieces) {
  ASSERT_EQ(open(), 0);
  const Extent e = extent(0);
  EXPECT_EQ(gds->load(e, nullptr, 0), -EINVAL);
  for (const kvshm_gds_piece& p :
       {kvshm_gds_piece{at(0), kBytes + 1, 0}, kvshm_gds_piece{at(0), 10, kBytes - 9},
        kvshm_gds_piece{0, 10, 0}, kvshm_gds_piece{at(0), 0, 0}, kvshm_gds_piece{~0ull - 5, 10, 0},
        kvshm_gds_piece{at(0), 10, ~0ull - 2}})
    EXPECT_EQ(gds->load(e, &p, 1), -ERANGE);
}

TEST_F(Gds, AFileThatEnds) {
  ASSERT_EQ(ftruncate(file, 2 * kSlot + 100), 0);
  for (const std::uint32_t mode : {KVSHM_AUTO, KVSHM_OFF}) {
    ASSERT_EQ(open(mode), 0);
    EXPECT_EQ(load(2), -EIO);
    EXPECT_EQ(load(3), -EIO);
    EXPECT_EQ(load(1), 0);
    EXPECT_EQ(status().switches, 0u) << "the file's fault";
    gds.reset();
  }
}

// O_DIRECT, as the tier's files are where they can be: aligned in memory, offset and length.
TEST_F(Gds, ByTheHostWithODirect) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const int direct = ::open(path, O_RDWR | O_DIRECT);
  if (direct < 0) GTEST_SKIP() << "no O_DIRECT on " << path << ": " << strerror(errno);
  dup2(direct, file), close(direct);
  ASSERT_EQ(open(KVSHM_OFF), 0);
  EXPECT_EQ(load(4), 0) << kvshm_last_error();
  EXPECT_TRUE(arrived(4));
  Extent e = extent(4);
  e.offset = 20 * kSlot;
  const auto p = pieces(4);
  ASSERT_EQ(gds->store(&e, p.data(), 3), 0) << kvshm_last_error();
  EXPECT_EQ(gds->load(e, p.data(), 3), 0) << kvshm_last_error();
}

// Through a tier: from disk by either path, from memory, and a miss; none of it keeps a slot held.
TEST_F(Gds, BlocksOfATier) {
  if (!alone()) return;
  TierFile where("gds");
  Pool pool({.blocks = 16, .block_bytes = kSlot});
  ASSERT_EQ(open_tier(pool.a, where.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 12);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  auto from_device = [&](std::size_t i) {  // into the device, and as a payload from there
    std::fill(device.begin(), device.begin() + kSlot, 0);
    const kvshm_gds_piece p[2] = {{at(1000), 30000, 0}, {at(40000), kSlot - 30000, 30000}};
    return kvshm_gds_load(pool.a, raw(keys[i]), p, 2, 10000);
  };
  auto right = [&](std::size_t i) {
    handles_t h(1);
    EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, h.data(), nullptr, nullptr), 0);
    auto* data = static_cast<std::uint8_t*>(kvshm_block_data(pool.a, h[0].id));
    std::memcpy(data, device.data() + 1000, 30000);
    std::memcpy(data + 30000, device.data() + 40000, kSlot - 30000);
    const bool yes = payload_right(pool.a, h[0].id, keys[i]);
    EXPECT_EQ(abort_fills(pool.a, h), 0);
    return yes;
  };
  EXPECT_EQ(from_device(0), -ENOENT) << "not open";
  options.load = KVSHM_REQUIRE;
  ASSERT_EQ(kvshm_gds_open(pool.a, &options), 0) << kvshm_last_error();
  EXPECT_EQ(kvshm_gds_open(pool.a, &options), -EEXIST);
  EXPECT_EQ(from_device(0), 0) << kvshm_last_error();  // in memory yet
  EXPECT_TRUE(right(0));
  ASSERT_EQ(kvshm_evict(pool.a, raw(keys), 12), 12);
  for (std::size_t i = 0; i < keys.size(); i++) {
    ASSERT_EQ(from_device(i), 0) << kvshm_last_error();
    EXPECT_TRUE(right(i)) << i;
    EXPECT_FALSE(present(pool.a, keys[i])) << "by way of memory";
  }
  auto now = sized<kvshm_gds>();
  ASSERT_EQ(kvshm_get_gds(pool.a, &now), 0);
  EXPECT_EQ(now.loads[KVSHM_GDS_NONE], 1u);
  EXPECT_EQ(now.loads[KVSHM_GDS_DIRECT], 12u);
  EXPECT_EQ(now.loads[KVSHM_GDS_HOST], 0u);
  EXPECT_EQ(kvshm_tier_clear(pool.a, 10000), 12) << "a slot is held";
  EXPECT_EQ(from_device(3), -ENOENT);
}

// Wrong bytes on the drive: a miss, and the slot goes.
TEST_F(Gds, ATierWithSpoiltSlots) {
  TierFile where("gds");
  Pool pool({.blocks = 16, .block_bytes = kSlot});
  ASSERT_EQ(open_tier(pool.a, where.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 12);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  ASSERT_EQ(kvshm_evict(pool.a, raw(keys), 12), 12);
  ASSERT_EQ(tier_of(pool.a).slots_ready, 12u);
  const int fd = ::open(where.path.c_str(), O_RDWR);
  const off_t end = lseek(fd, 0, SEEK_END);
  for (std::uint64_t i = 1; i <= tier_of(pool.a).slots; i++)
    ASSERT_EQ(pwrite(fd, "spoilt", 6, end - off_t(i * kSlot) + 5000), 6);
  close(fd);
  ASSERT_EQ(kvshm_gds_open(pool.a, &options), 0) << kvshm_last_error();
  const kvshm_gds_piece p = {at(0), kSlot, 0};
  for (const block_key& k : keys) EXPECT_EQ(kvshm_gds_load(pool.a, raw(k), &p, 1, 10000), -ENOENT);
  EXPECT_EQ(tier_of(pool.a).slots_ready, 0u);
  EXPECT_EQ(own_stats(pool.a).tier_damaged_total, 12u);
}

// The 5th read fails: that load and those after it are served, by way of memory.
TEST_F(Gds, ATierGoesOnByTheHost) {
  if (!alone()) return;
  TierFile where("gds");
  Pool pool({.blocks = 16, .block_bytes = kSlot});
  ASSERT_EQ(open_tier(pool.a, where.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 12);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  ASSERT_EQ(kvshm_evict(pool.a, raw(keys), 12), 12);
  fails("read=5");
  options.load = KVSHM_AUTO;
  ASSERT_EQ(kvshm_gds_open(pool.a, &options), 0) << kvshm_last_error();
  const kvshm_gds_piece p = {at(0), kSlot, 0};
  for (std::size_t i = 0; i < keys.size(); i++) {
    ASSERT_EQ(kvshm_gds_load(pool.a, raw(keys[i]), &p, 1, 10000), 0) << i << kvshm_last_error();
    handles_t h(1);
    ASSERT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, h.data(), nullptr, nullptr), 0);
    std::memcpy(kvshm_block_data(pool.a, h[0].id), device.data(), kSlot);
    EXPECT_TRUE(payload_right(pool.a, h[0].id, keys[i])) << i;
    EXPECT_EQ(abort_fills(pool.a, h), 0);
    EXPECT_EQ(present(pool.a, keys[i]), i > 4) << i;
  }
  auto now = sized<kvshm_gds>();
  ASSERT_EQ(kvshm_get_gds(pool.a, &now), 0);
  EXPECT_EQ(now.loads[KVSHM_GDS_DIRECT], 4u);
  EXPECT_EQ(now.loads[KVSHM_GDS_HOST], 8u);
  EXPECT_EQ(now.switches, 1u);
}

}  // namespace
