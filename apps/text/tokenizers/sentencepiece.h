#pragma once
/// \file
/// SentencePiece's tokenizer.

#include <memory>

#include "text/tokenizers/tokenizer.h"

namespace text {

/// Whether SentencePiece is built in. Otherwise the constructor and `train_sentencepiece` throw std::runtime_error that
/// says what to install.
bool has_sentencepiece();

/// Trains a model with `vocabulary_size` tokens and returns the bytes of a .model file: a unigram language model over
/// pieces of words (Kudo 2018), with a token for each byte, so that any text can be encoded. Equal texts give equal
/// models. Takes half a minute for 10 MB. Throws std::invalid_argument if the text is too small for that many tokens,
/// or if the tokens do not suffice for the 256 bytes and the text's characters.
std::string train_sentencepiece(std::string_view text, int64_t vocabulary_size);

/// Encodes line by line; a line break is a token. `decode` returns what was encoded, except that bytes that are not
/// UTF-8 become U+FFFD, and U+2581, which SentencePiece uses for a space, becomes a space.
///
///     const SentencePiece pieces(train_sentencepiece(text, 5000));
class SentencePiece : public Tokenizer {
 public:
  /// `model`: the bytes of a .model file. Throws std::invalid_argument if they are not a model.
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

}  // namespace text
