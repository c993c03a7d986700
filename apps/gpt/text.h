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
  /// Token numbers, as 1-D tensors of int64.
  at::Tensor training, validation;
};

/// Returns the characters of the text that the arguments name.
text::Corpus read_corpus(const Arguments& arguments);

/// Returns the tokens of the text and the tokenizer that the arguments name. The vocabulary of characters comes from
/// the training and the validation text, and other vocabularies from the training text only. Collective, because rank 0
/// makes SentencePiece's vocabulary; an error is thrown on every rank.
Text make_text(const text::Corpus& corpus, const Arguments& arguments);

}  // namespace gpt
