#pragma once
/// \file
/// The interface of tokenizers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace text {

using Tokens = std::vector<int64_t>;

/// Converts texts to tokens, which are numbers below `vocabulary_size()`, and back. Immutable, so any number of threads
/// may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocabulary_size() const = 0;
  /// Returns the tokens of a text. Throws std::invalid_argument, with the position, if the vocabulary cannot express a
  /// part of the text.
  virtual Tokens encode(std::string_view text) const = 0;
  /// Returns the text of tokens. Throws std::out_of_range for a number that is not a token.
  virtual std::string decode(std::span<const int64_t> tokens) const = 0;
  /// Returns the word for a token in messages: "character", "word" or "token".
  virtual std::string_view unit() const = 0;
};

}  // namespace text
