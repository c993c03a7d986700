#include "state/format/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <new>
#include <utility>

namespace fsdp::state {
namespace {

XXH3_state_t* hash_of(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex_of(uint64_t checksum) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(checksum));
  return text;
}

std::optional<uint64_t> checksum_in(std::string_view hex) {
  uint64_t checksum = 0;
  const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), checksum, 16);
  // Accepts only the spelling of hex_of, so no capital letters.
  if (error != std::errc{} || end != hex.data() + hex.size() || hex != hex_of(checksum)) return std::nullopt;
  return checksum;
}

ChunkChecksums::ChunkChecksums() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(hash_of(state_));
}
ChunkChecksums::~ChunkChecksums() { XXH3_freeState(hash_of(state_)); }

void ChunkChecksums::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<size_t>(bytes.size(), kChunkBytes - in_chunk_));
    XXH3_64bits_update(hash_of(state_), part.data(), part.size());
    in_chunk_ += part.size();
    bytes = bytes.subspan(part.size());
    if (in_chunk_ == kChunkBytes) close_chunk();
  }
}

std::vector<uint64_t> ChunkChecksums::take() {
  if (in_chunk_ > 0) close_chunk();
  return std::exchange(checksums_, {});
}

void ChunkChecksums::close_chunk() {
  checksums_.push_back(XXH3_64bits_digest(hash_of(state_)));
  XXH3_64bits_reset(hash_of(state_));
  in_chunk_ = 0;
}

}  // namespace fsdp::state
