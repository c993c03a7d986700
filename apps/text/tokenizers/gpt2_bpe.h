#pragma once
/// \file
/// GPT-2's tokenizer, a byte-pair encoding.

#include <unordered_map>

#include "text/tokenizers/tokenizer.h"

namespace text {

/// A byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019). Token numbers are those of GPT-2's
/// encoder.json. They follow from the merges: the 256 bytes come first, then the merges in their order, then
/// `<|endoftext|>`. Any text can be encoded, and `decode` returns exactly the text that was encoded. `<|endoftext|>`
/// inside a text is encoded as ordinary text.
///
///     const Gpt2Bpe bpe(read_file("gpt2-bpe/vocab.bpe"));
///     bpe.encode("hello world");  // {31373, 995}
class Gpt2Bpe : public Tokenizer {
 public:
  /// `merges` has the contents of the file vocab.bpe (merges.txt): each line is a pair of tokens in GPT-2's spelling of
  /// bytes. Throws std::invalid_argument, naming the line, if a line is not a pair of bytes or earlier merges.
  explicit Gpt2Bpe(std::string_view merges);

  int64_t vocabulary_size() const override { return static_cast<int64_t>(vocabulary_.size()); }
  Tokens encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string_view unit() const override { return "token"; }

 private:
  Tokens encode_piece(std::string_view piece) const;

  std::vector<std::string> vocabulary_;
  std::vector<int64_t> bytes_;                    // the token of each byte
  std::unordered_map<uint64_t, int64_t> merges_;  // the token that each pair becomes; lower tokens are merged first
};

}  // namespace text
