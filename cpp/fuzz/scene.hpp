// The arena that a target plays in: 96 small blocks in every state, one process that lives and one
// that is dead. Built once by the library's own calls, put back before each execution.
#pragma once
#include <memory>
#include <vector>

#include "arena/arena.hpp"
#include "arena/attach.hpp"
#include "capi/call.hpp"
#include "feed.hpp"
#include "host.hpp"

namespace kvshm_fuzz {

inline constexpr std::uint32_t kBlocks = 96;
inline constexpr std::uint64_t kBlockBytes = 256;
inline constexpr unsigned kKeys = 64;  // of which about 45 are in the arena
inline constexpr unsigned kSections = 12;

void key_of(unsigned n, kvshm_key out);

class Scene {
 public:
  static Scene& get();
  // As it was built: the object, the locks, the clock's pace.
  void reset();
  // Damages one place of the metadata; a reset puts it back.
  void damage(Feed& f);
  // The same at the n-th step point from now, in the middle of a call.
  void damage_later(Feed& f, unsigned n);
  void write(std::size_t offset, const void* p, std::size_t n);  // any bytes, put back likewise
  // The object has other sections now: nothing in it is forbidden until the next reset.
  void reshaped();
  void marks_written() { marks_dirty_ = true; }

  // The process under test. A shell of ours, since the library's are never freed.
  int attach(kvshm::Mode mode, const kvshm_options& o);
  void close();  // must work, and leave no descriptor, mapping or lock
  bool attached() const { return victim_.impl != nullptr; }
  kvshm_arena* victim() { return &victim_; }
  kvshm_arena* other() { return &other_; }  // lives beside it, with holds and fills
  const std::vector<kvshm_handle>& handles() const { return handles_; }
  const kvshm::Geometry& geometry() const { return geometry_; }
  const std::byte* golden() const { return golden_.get(); }
  std::uint64_t held = 0, filling = 0;  // blocks, when only `other` is there

 private:
  Scene();
  void populate();
  void prohibit();  // what the library has no business with
  void put_back(std::size_t offset, std::size_t n);
  void compare();
  static void at_step(const char* name, void* self);

  kvshm_arena victim_, other_;
  std::unique_ptr<std::byte[]> golden_;
  kvshm::Geometry geometry_{};
  host::Mark mark_{};
  unsigned descriptors_ = 0, mappings_ = 0, locks_ = 0;
  std::vector<kvshm_handle> handles_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> dirty_;  // offset, bytes
  bool marks_dirty_ = false, reshaped_ = false;
  unsigned slot_ = 0;  // that the one under test had last
  std::uint64_t resets_ = 0;
  Feed* later_ = nullptr;
  unsigned steps_left_ = 0;
};

kvshm_options plain_options();

}  // namespace kvshm_fuzz
