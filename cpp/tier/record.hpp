// What a tier file holds, byte by byte (docs/format.md draws it). Little-endian; all versions below
// 2^16 begin with the same 24 bytes.
//
//   file 0   superblock A | superblock B | records: 64 bytes a slot | ... | slots
//   file i   superblock A | superblock B | ...                            | slots
//
// Slot s lies in file s % files, as its slot s / files. Slots begin at data_offset of each file.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvshm::tier {

inline constexpr std::uint64_t kMagic = 0x3152454954564bULL | std::uint64_t{0x6e}
                                                                  << 56;  // "KVTIER1n"
// A change costs every host its disk cache at the next start.
inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint32_t kRecordBytes = 64, kRecordsPerPage = kPageBytes / kRecordBytes;

// Two copies, at 0 and kPageBytes; the valid one with the higher sequence counts. Only its owner
// writes, the older of the two.
struct Superblock {
  std::uint64_t magic;
  std::uint32_t version, bytes;  // bytes: of this struct
  std::uint64_t sequence;
  std::uint8_t set[16];                          // the same in all files of a tier
  std::uint8_t owner[16];                        // uuid of the image (arena NAME-g3) that may write
  std::uint8_t fingerprint[16];                  // of the identity; zeros: raw
  std::uint64_t block_bytes, slot_bytes, slots;  // slots: of all files together
  std::uint64_t records_offset, data_offset;
  std::uint32_t file, files;   // this one, of how many
  std::uint32_t epoch, codec;  // epoch of the namespace; codec 0 = bytes as they are
  char owner_name[64];         // of the arena, for messages
  char identity[1024];         // JSON, for messages
  std::uint64_t check;         // XXH3-64 of all bytes before it
};
static_assert(sizeof(Superblock) <= kPageBytes && offsetof(Superblock, owner) == 40 &&
              offsetof(Superblock, block_bytes) == 72 && offsetof(Superblock, file) == 112 &&
              offsetof(Superblock, owner_name) == 128 && offsetof(Superblock, check) == 1216);

// A slot's descriptor; all zeros = empty. In the image it is the data of the slot's block.
struct Record {
  std::uint64_t key[2];
  std::uint64_t check[2];  // XXH3-128 (low, high) of the slot's first `length` bytes
  std::uint32_t length;
  std::uint32_t expires;  // seconds since 1970; 0 = never
  std::uint32_t epoch;    // of the namespace when it was stored
  std::uint32_t parent;   // slot of the block before it, a hint; ~0 = none
  std::uint8_t priority, uses;
  std::uint8_t codec;  // 0 = bytes as they are; others are not read by this version
  std::uint8_t reserved[5];
  std::uint64_t self;  // XXH3-64, seeded with the slot's number, of the 56 bytes before it
};
static_assert(sizeof(Record) == kRecordBytes && offsetof(Record, self) == 56);

std::uint64_t self_check(const Record& r, std::uint64_t slot);
inline bool sound(const Record& r, std::uint64_t slot) {
  return (r.key[0] | r.key[1]) && r.self == self_check(r, slot);
}
void payload_check(const void* data, std::uint64_t bytes, std::uint64_t out[2]);
std::uint64_t superblock_check(const Superblock& s);

}  // namespace kvshm::tier
