#pragma once
/// \file
/// The tokenizer of the library SentencePiece.

#include <memory>

#include "text/tokenizers/tokenizer.h"

namespace text {

/// Returns true if this program was built with SentencePiece. Otherwise the constructor of the class SentencePiece and
/// `train_sentencepiece` throw a std::runtime_error that says what to install.
bool has_sentencepiece();

/// Trains a model with `vocabulary_size` tokens and returns the bytes of a .model file. The model is a unigram language
/// model over pieces of words (Kudo 2018). It has a token for each byte, so that any text can be encoded. Equal texts
/// give equal models. The training takes half a minute for 10 MB. Throws std::invalid_argument if the text is too small
/// for this number of tokens, or if there are fewer tokens than the 256 bytes and the text's characters need.
std::string train_sentencepiece(std::string_view text, int64_t vocabulary_size);

/// A tokenizer that encodes line by line. A line break is a token. `decode` returns the text that was encoded, except
/// that bytes that are not UTF-8 become U+FFFD, and U+2581 becomes a space, because SentencePiece uses it for spaces.
///
///     const SentencePiece pieces(train_sentencepiece(text, 5000));
class SentencePiece : public Tokenizer {
 public:
  /// `model` has the bytes of a .model file. Throws std::invalid_argument if they are not a model.
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
