#include "text.h"

#include <embedded_text.h>
#include <fsdp/collectives.h>
#include <torch/types.h>

#include <cstring>
#include <stdexcept>

#include "text/tokenizers/characters.h"
#include "text/tokenizers/gpt2_bpe.h"
#include "text/tokenizers/sentencepiece.h"
#include "text/tokenizers/words.h"

namespace gpt {
namespace {

using text::Corpus;

std::string broadcast_text(const std::string& of_rank_0) {
  const auto size = fsdp::broadcast(torch::tensor(static_cast<int64_t>(of_rank_0.size()))).item<int64_t>();
  auto bytes = torch::zeros(size, torch::kUInt8);
  if (fsdp::rank() == 0) std::memcpy(bytes.data_ptr(), of_rank_0.data(), of_rank_0.size());
  bytes = fsdp::broadcast(bytes);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(size)};
}

/// Trains SentencePiece on rank 0 and returns its model on every rank. Training takes half a minute, so the other ranks
/// do not repeat it. They also get the same vocabulary even if their processors round differently. Collective.
std::string sentencepiece_of_rank_0(const std::string& text, int64_t vocab_size) {
  std::string model, error;
  if (fsdp::rank() == 0) {
    try {
      model = text::train_sentencepiece(text, vocab_size);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  error = broadcast_text(error);
  if (!error.empty()) throw std::runtime_error(error);
  return broadcast_text(model);
}

std::unique_ptr<text::Tokenizer> make_tokenizer(const Corpus& corpus, const Arguments& arguments) {
  using namespace text;  // NOLINT(google-build-using-namespace)
  switch (arguments.tokenizer) {
    case Vocabulary::kCharacters:
      return std::make_unique<Characters>(corpus.training + corpus.validation);
    case Vocabulary::kWords:
      return std::make_unique<Words>(corpus.training);
    case Vocabulary::kGpt2:
      return std::make_unique<Gpt2Bpe>(read_text(arguments.merges));
    case Vocabulary::kSentencePiece:
      return std::make_unique<SentencePiece>(sentencepiece_of_rank_0(corpus.training, arguments.vocab_size));
  }
  return nullptr;
}

}  // namespace

Corpus read_corpus(const Arguments& arguments) {
  return arguments.text.empty() ? text::split_text(fsdp::tiny_shakespeare()) : text::read_corpus(arguments.text);
}

Text make_text(const Corpus& corpus, const Arguments& arguments) {
  Text text;
  text.tokenizer = make_tokenizer(corpus, arguments);
  text.training = torch::tensor(text.tokenizer->encode(corpus.training));
  text.validation = torch::tensor(text.tokenizer->encode(corpus.validation));
  return text;
}

}  // namespace gpt
