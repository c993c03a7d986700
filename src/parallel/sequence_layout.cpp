#include "parallel/sequence_layout.h"

#include <algorithm>
#include <numeric>

namespace fsdp::parallel {

int64_t SequenceLayout::chunk_length() const {
  const int64_t step = parts / std::gcd(parts, is_head_tail ? 2 : 1), least = (length + chunks() - 1) / chunks();
  return (least + step - 1) / step * step;
}

std::vector<int64_t> SequenceLayout::chunks_of(int64_t rank) const {
  if (!is_head_tail) return {rank};
  return {rank, 2 * ranks - 1 - rank};
}

int64_t SequenceLayout::valid_length(int64_t rank) const {
  int64_t valid = 0;
  for (const auto chunk : chunks_of(rank))
    valid += std::clamp<int64_t>(length - chunk * chunk_length(), 0, chunk_length());
  return valid;
}

std::vector<int64_t> SequenceLayout::positions(int64_t rank) const {
  std::vector<int64_t> all;
  for (const auto chunk : chunks_of(rank))
    for (int64_t i = 0; i < chunk_length(); ++i) all.push_back(std::min(chunk * chunk_length() + i, length - 1));
  return all;
}

std::optional<Block> block_of(const SequenceLayout& queries, const SequenceLayout& keys, int64_t rank, int64_t source,
                              bool is_causal) {
  Block block{0, queries.own_length(), 0, keys.own_length(), is_causal && rank == source};
  if (is_causal && rank != source) {
    const int64_t half = queries.chunk_length();
    if (!queries.is_head_tail) {
      if (source > rank) return std::nullopt;
    } else if (source < rank) {
      block.keys = half;  // the source's head is before all of this rank's tokens, and its tail is after them
    } else {
      block.first_query = block.queries = half;  // this rank's tail is after all tokens of the source
    }
  }
  block.keys = std::min(block.keys, keys.valid_length(source));
  if (block.keys == 0) return std::nullopt;
  return block;
}

std::vector<Block> blocks_of_all(const SequenceLayout& queries, const SequenceLayout& keys, int64_t rank,
                                 bool is_causal) {
  const int64_t own = queries.own_length();
  if (!is_causal) return {{0, own, 0, keys.length, false}};
  std::vector<Block> blocks;
  const int64_t before = std::min(rank * own, keys.length), valid = keys.valid_length(rank);
  if (before > 0) blocks.push_back({0, own, 0, before, false});
  if (valid > 0) blocks.push_back({0, own, before, valid, true});
  return blocks;
}

}  // namespace fsdp::parallel
