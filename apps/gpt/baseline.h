#pragma once
/// \file
/// Perplexities of models that only count tokens, as a baseline.

#include <string>

#include "text.h"

namespace gpt {

/// Returns a line with the perplexities on the validation text of a unigram model and of an interpolated Kneser-Ney
/// 3-gram model. Both count the training text. This takes a second for each million tokens.
std::string baseline_line(const Text& text);

}  // namespace gpt
