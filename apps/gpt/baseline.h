#pragma once
/// \file
/// What counting gives on the same tokens.

#include <string>

#include "text.h"

namespace gpt {

/// A line with the perplexities of a unigram model and of an interpolated Kneser-Ney 3-gram model of the training text
/// on the validation text. Takes a second for each million tokens.
std::string baseline_line(const Text& text);

}  // namespace gpt
