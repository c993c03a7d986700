#pragma once
/// \file
/// A tokenizer whose tokens are single bytes.

#include <array>

#include "text/tokenizers/tokenizer.h"

namespace text {

/// A tokenizer whose vocabulary consists of the bytes of one text, in ascending order. `decode` returns exactly the
/// text that was encoded.
///
///     const Characters characters("abracadabra");
///     characters.encode("bad");  // {1, 0, 3}
class Characters : public Tokenizer {
 public:
  /// Makes the vocabulary of `text`. Throws std::invalid_argument if `text` is empty.
  explicit Characters(std::string_view text);

  int64_t vocabulary_size() const override { return static_cast<int64_t>(vocabulary_.size()); }
  Tokens encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string_view unit() const override { return "character"; }

 private:
  std::string vocabulary_;
  std::array<int64_t, 256> numbers_;
};

}  // namespace text
