#pragma once
/// \file
/// Checksums of what lies in files: XXH3, 64 bits, seed 0.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::state {

uint64_t checksum_of(std::span<const std::byte> bytes);
/// 16 hexadecimal digits, as a JSON number could not be read everywhere.
std::string hex_of(uint64_t checksum);
std::optional<uint64_t> checksum_in(std::string_view hex);

/// A tensor has a checksum for each started chunk of its bytes, so that who reads some of its rows reads little more.
inline constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

/// The checksums of what is added piece by piece.
class ChunkChecksums {
 public:
  ChunkChecksums();
  ~ChunkChecksums();
  ChunkChecksums(const ChunkChecksums&) = delete;
  ChunkChecksums& operator=(const ChunkChecksums&) = delete;
  void add(std::span<const std::byte> bytes);
  /// Those of all chunks so far, the last one perhaps shorter; then it begins anew.
  std::vector<uint64_t> take();

 private:
  void close_chunk();
  void* state_;
  uint64_t in_chunk_ = 0;
  std::vector<uint64_t> checksums_;
};

}  // namespace fsdp::state
