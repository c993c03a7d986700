#pragma once
/// \file
/// How GPT-2 cuts a text into pieces before it merges bytes.

#include <cstddef>
#include <string_view>

namespace fsdp::text {

/// Bytes of the piece at the beginning of `text`, which is not empty: the first match of GPT-2's pattern
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and its encoder.py). Every text is the
/// sequence of its pieces.
size_t gpt2_piece(std::string_view text);

}  // namespace fsdp::text
