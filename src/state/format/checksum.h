#pragma once
/// \file
/// Checksums of file contents. They are 64-bit XXH3 hashes with seed 0.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::state {

uint64_t checksum_of(std::span<const std::byte> bytes);
/// Returns the checksum as 16 hexadecimal digits. Manifests contain this text, since not every JSON reader supports
/// 64-bit numbers.
std::string hex_of(uint64_t checksum);
/// The inverse of hex_of. Returns nullopt for any other text.
std::optional<uint64_t> checksum_in(std::string_view hex);

/// Number of bytes of a chunk. Each chunk of a tensor has a checksum of its own, so a reader of a few rows has to read
/// only their chunks to check them. The last chunk of a tensor may be shorter.
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

/// Computes the checksums of the chunks of data that the caller adds piece by piece.
class ChunkChecksums {
 public:
  ChunkChecksums();
  ~ChunkChecksums();
  ChunkChecksums(const ChunkChecksums&) = delete;
  ChunkChecksums& operator=(const ChunkChecksums&) = delete;
  void add(std::span<const std::byte> bytes);
  /// Returns the checksums of all chunks since the last call, and starts anew. The last chunk may be shorter.
  std::vector<uint64_t> take();

 private:
  void close_chunk();
  void* state_;
  uint64_t in_chunk_ = 0;
  std::vector<uint64_t> checksums_;
};

}  // namespace fsdp::state
