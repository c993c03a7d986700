#pragma once
/// \file
/// Pure: which rank has which tokens of a sequence, and which keys the queries of a rank meet.

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::parallel {

/// A sequence over ranks. It is cut into chunks of equal lengths; what is missing to that is padding behind its end.
/// Where ranks are those of a ring, each of which shares its tokens with others that have other heads, the tokens of
/// one are cut into parts of equal lengths.
struct SequenceLayout {
  /// The tokens of the whole sequence.
  int64_t length = 0;
  int64_t ranks = 1;
  /// Rank r has the chunks r and 2 * ranks - 1 - r, so that a causal mask leaves each rank as much to compute. Else it
  /// has chunk r.
  bool is_head_tail = false;
  int64_t parts = 1;

  int64_t chunks() const { return is_head_tail ? 2 * ranks : ranks; }
  int64_t chunk_length() const;
  /// How many tokens each rank has, all parts and padding.
  int64_t own_length() const { return chunk_length() * (is_head_tail ? 2 : 1); }
  /// The chunks of a rank, in the order in which it has them, which is ascending.
  std::vector<int64_t> chunks_of(int64_t rank) const;
  /// How many of a rank's tokens are no padding. They come first.
  int64_t valid_length(int64_t rank) const;
  /// Where a rank's tokens stand in the whole sequence. Padding has the position of the last token.
  std::vector<int64_t> positions(int64_t rank) const;

  bool operator==(const SequenceLayout&) const = default;
};

/// Queries of one rank that see keys, both by their places among those that a computation has at hand.
struct Block {
  int64_t first_query, queries, first_key, keys;
  /// Query i of the block sees its keys 0 to i; else every query sees all.
  bool is_causal;

  bool operator==(const Block&) const = default;
};

/// The queries of `rank` that see keys which `source` has. None where all of these are hidden or padding. A causal mask
/// needs one layout for both.
std::optional<Block> block_of(const SequenceLayout& queries, const SequenceLayout& keys, int64_t rank, int64_t source,
                              bool is_causal);

/// The same for the keys of all ranks, one rank's behind the other's. The layouts are without head-tail balance.
std::vector<Block> blocks_of_all(const SequenceLayout& queries, const SequenceLayout& keys, int64_t rank,
                                 bool is_causal);

}  // namespace fsdp::parallel
