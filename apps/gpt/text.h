#pragma once
/// \file
/// Reads a text and converts it to tokens.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "arguments.h"
#include "text/corpus.h"
#include "text/tokenizers/tokenizer.h"

namespace gpt {

struct Text {
  std::unique_ptr<text::Tokenizer> tokenizer;
  /// Flat, int64.
  at::Tensor training, validation;
};

/// The characters that the arguments name, before anything is made of them.
text::Corpus read_corpus(const Arguments& arguments);

/// With the tokenizer that the arguments name. Vocabularies come from the training part, that of characters from both.
/// Collective, because SentencePiece's is made by rank 0; it throws the same on every rank.
Text make_text(const text::Corpus& corpus, const Arguments& arguments);

}  // namespace gpt
