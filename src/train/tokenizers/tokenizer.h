#pragma once
/// \file
/// Texts as numbers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::text {

using Tokens = std::vector<int64_t>;

/// One way to cut texts into tokens, each a number below `vocabulary_size()`. Not changed once it is made, so any
/// number of threads may use it.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocabulary_size() const = 0;
  /// Throws std::invalid_argument if the text has what the vocabulary cannot express, and says where.
  virtual Tokens encode(std::string_view text) const = 0;
  /// Throws std::out_of_range for a number that is no token's.
  virtual std::string decode(std::span<const int64_t> tokens) const = 0;
  /// What one token is, for messages: "character", "word", "token".
  virtual std::string_view unit() const = 0;
};

}  // namespace fsdp::text
