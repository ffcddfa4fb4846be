// Blocks between a tier's files and the memory of a CUDA device: by cuFile, or by the host.
//
// In the thread that calls, which waits for the drive and the device. Any thread, many at once.
#pragma once
#include <kvshm_gds.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda_context.hpp"
#include "tier/cufile.hpp"

namespace kvshm::tier {

struct Extent {  // a slot's payload
  unsigned file = 0;
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint64_t check[2] = {};  // see Record
};

struct GdsFiles {
  std::vector<int> files;                      // as the tier has them: they outlive this
  std::uint64_t slot_bytes = 0, align = 4096;  // align: of offsets and lengths
};

class Stage;

class Gds {
 public:
  // -KVSHM_EUNSUPPORTED with a text: no CUDA device, or a required path that cannot be had.
  static int open(const GdsFiles& files, const kvshm_gds_options& o, std::unique_ptr<Gds>* out);
  ~Gds();
  // 0; -EBADMSG: not the bytes that were stored; -EIO. Then the pieces' contents are undefined.
  int load(const Extent& e, const kvshm_gds_piece* p, std::uint32_t n);
  // From pieces that make up the whole extent; *check is what they are.
  int store(Extent* e, const kvshm_gds_piece* p, std::uint32_t n);
  bool loads_direct() { return path(kLoad) == KVSHM_GDS_DIRECT; }
  // From memory of the host that holds the block. from: KVSHM_GDS_HOST, it was brought there for
  // this; KVSHM_GDS_NONE, it was there.
  int load_from(void* host, std::uint32_t bytes, const kvshm_gds_piece* p, std::uint32_t n,
                std::uint32_t from);
  // Paths and figures.
  void describe(kvshm_gds* out);

 private:
  enum Way { kLoad, kStore, kWays };
  Gds();
  void prepare(const kvshm_gds_options& o, std::string* why);
  bool registered(const kvshm_gds_options& o, std::string* why);
  void unregister();
  std::uint32_t path(Way way);
  int done(Way way, std::uint32_t path, std::uint64_t bytes);
  void leave_direct(Way way, const std::string& why);
  bool move(const Extent& e, const kvshm_gds_piece& p, Way way, std::string* why);
  int copy(Stage& s, std::byte* host, const kvshm_gds_piece* p, std::uint32_t n, bool to_device);
  std::uint64_t whole(std::uint64_t bytes) const;
  int read(Stage& s, const Extent& e);
  int load_staged(Stage& s, const Extent& e, const kvshm_gds_piece* p, std::uint32_t n);
  int verify(Stage& s, const Extent& e, const kvshm_gds_piece* p, std::uint32_t n, bool all);

  GdsFiles files_;
  cuda::Session session_;
  const cufile::Library* library_ = nullptr;
  std::vector<cufile::Handle> handles_;
  std::vector<kvshm_gds_buffer> buffers_;
  std::uint32_t modes_[kWays] = {};
  bool trust_ = false;

  std::mutex mutex_;  // over what follows
  std::uint32_t paths_[kWays] = {};
  std::uint64_t blocks_[kWays][3] = {}, bytes_[kWays][3] = {};
  std::uint32_t switches_ = 0, may_stage_ = 0;
  bool pinned_ = true;
  std::size_t made_ = 0;  // stages
  std::string why_;
  std::vector<std::unique_ptr<Stage>> stages_;  // that nobody uses

  friend class StageLease;
};

}  // namespace kvshm::tier
