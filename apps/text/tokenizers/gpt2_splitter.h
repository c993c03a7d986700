#pragma once
/// \file
/// Splitting of texts into pieces, as GPT-2 does before it merges bytes.

#include <cstddef>
#include <string_view>

namespace text {

/// The length in bytes of the first piece of `text`, which must not be empty: the first match of GPT-2's pattern
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and its encoder.py). Every text is a
/// sequence of such pieces.
size_t gpt2_piece(std::string_view text);

}  // namespace text
