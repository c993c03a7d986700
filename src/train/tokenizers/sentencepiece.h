#pragma once
/// \file
/// Tokens that SentencePiece finds in a text.

#include <memory>

#include "train/tokenizers/tokenizer.h"

namespace fsdp::text {

/// Whether this was built with SentencePiece; without it, the constructor and `train_sentencepiece` throw
/// std::runtime_error that says what to install.
bool has_sentencepiece();

/// A model for `vocabulary_size` tokens, as the bytes of a .model file: a unigram language model over pieces of words
/// (Kudo 2018), with a token for each byte, so that it can express any text. The same text gives the same model. Takes
/// half a minute for 10 MB. Throws std::invalid_argument if the text is too small for so many tokens, or if they are
/// too few to have 256 bytes and the text's characters among them.
std::string train_sentencepiece(std::string_view text, int64_t vocabulary_size);

/// Encodes line by line; a line break is a token. `decode` gives back what was encoded, but for bytes that are not
/// UTF-8, which become U+FFFD, and the character U+2581, which SentencePiece writes for a blank.
///
///     const SentencePiece pieces(train_sentencepiece(text, 5000));
class SentencePiece : public Tokenizer {
 public:
  /// `model`: the bytes of a .model file. Throws std::invalid_argument if they are not one.
  explicit SentencePiece(std::string_view model);
  ~SentencePiece() override;

  int64_t vocabulary_size() const override;
  Tokens encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string_view unit() const override { return "token"; }

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

}  // namespace fsdp::text
