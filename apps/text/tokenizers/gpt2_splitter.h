#pragma once
/// \file
/// Splits texts into pieces, as GPT-2's tokenizer does before it merges bytes.

#include <cstddef>
#include <string_view>

namespace text {

/// Returns the length in bytes of the first piece of `text`. `text` must not be empty. A piece is a match of GPT-2's
/// pattern
///
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
///
/// (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and its encoder.py). Every text is a
/// sequence of such pieces.
size_t gpt2_piece(std::string_view text);

}  // namespace text
