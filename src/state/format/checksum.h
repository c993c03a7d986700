#pragma once
/// \file
/// Checksums of file contents: XXH3 with 64 bits and seed 0.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::state {

uint64_t checksum_of(std::span<const std::byte> bytes);
/// The checksum as 16 hexadecimal digits, since not every JSON reader supports 64-bit numbers.
std::string hex_of(uint64_t checksum);
std::optional<uint64_t> checksum_in(std::string_view hex);

/// Each chunk of a tensor's bytes, the last one possibly shorter, has a checksum of its own, so that reading a few rows
/// reads little more.
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

/// Computes the checksums of the chunks of data that is added piece by piece.
class ChunkChecksums {
 public:
  ChunkChecksums();
  ~ChunkChecksums();
  ChunkChecksums(const ChunkChecksums&) = delete;
  ChunkChecksums& operator=(const ChunkChecksums&) = delete;
  void add(std::span<const std::byte> bytes);
  /// Returns the checksums of all chunks so far and starts again.
  std::vector<uint64_t> take();

 private:
  void close_chunk();
  void* state_;
  uint64_t in_chunk_ = 0;
  std::vector<uint64_t> checksums_;
};

}  // namespace fsdp::state
