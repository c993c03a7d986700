#pragma once
/// \file
/// Arithmetic of sequences that are split over ranks: which tokens each rank has, and which keys its queries see.

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::parallel {

/// How a sequence is split over the ranks of a ring. The sequence is split into chunks of equal lengths, and its end is
/// padded so that this is possible. If several ranks share the tokens of one rank of the ring (Note [Heads and rings]
/// in sequence_scope.h), each of them has one of `parts` equal parts of these tokens.
struct SequenceLayout {
  /// Number of tokens of the whole sequence, without padding.
  int64_t length = 0;
  int64_t ranks = 1;
  /// True if rank r has the chunks r and 2 * ranks - 1 - r, so that a causal mask gives all ranks the same work. False
  /// if rank r has chunk r.
  bool is_head_tail = false;
  int64_t parts = 1;

  int64_t chunks() const { return is_head_tail ? 2 * ranks : ranks; }
  int64_t chunk_length() const;
  /// Returns the number of tokens that each rank of the ring has, including padding and all parts.
  int64_t own_length() const { return chunk_length() * (is_head_tail ? 2 : 1); }
  /// Returns the chunks of a rank in ascending order, in which the rank also stores them.
  std::vector<int64_t> chunks_of(int64_t rank) const;
  /// Returns the number of a rank's tokens that are not padding. They come before the padding.
  int64_t valid_length(int64_t rank) const;
  /// Returns the positions of a rank's tokens in the whole sequence. Padding has the position of the last token.
  std::vector<int64_t> positions(int64_t rank) const;

  bool operator==(const SequenceLayout&) const = default;
};

/// A range of queries and the range of keys that they see. The numbers are indices in the tensors of queries and keys
/// of one computation.
struct Block {
  int64_t first_query, queries, first_key, keys;
  /// True if query i of the block sees the block's keys 0 to i; false if every query sees all keys of the block.
  bool is_causal;

  bool operator==(const Block&) const = default;
};

/// Returns the queries of `rank` and the keys of `source` that they see, or nothing if all these keys are hidden or
/// padding. With a causal mask, `queries` and `keys` must be the same layout.
std::optional<Block> block_of(const SequenceLayout& queries, const SequenceLayout& keys, int64_t rank, int64_t source,
                              bool is_causal);

/// Returns the blocks that the queries of `rank` form with the keys of all ranks, which lie in one tensor in the order
/// of the ranks. Neither layout may be head-tail.
std::vector<Block> blocks_of_all(const SequenceLayout& queries, const SequenceLayout& keys, int64_t rank,
                                 bool is_causal);

}  // namespace fsdp::parallel
