#include "baseline.h"

#include <ATen/core/Tensor.h>

#include <cstdio>
#include <span>

#include "text/ngram.h"

namespace gpt {
namespace {

std::span<const int64_t> tokens_of(const at::Tensor& numbers) {
  return {numbers.const_data_ptr<int64_t>(), static_cast<size_t>(numbers.numel())};
}

}  // namespace

std::string baseline_line(const Text& text) {
  const auto training = tokens_of(text.training), validation = tokens_of(text.validation);
  const int64_t vocabulary = text.tokenizer->vocabulary_size();
  const std::string unit(text.tokenizer->unit());
  char line[200];
  std::snprintf(line, sizeof(line),
                "%ld tokens to train on, a vocabulary of %ld; validation perplexity per %s by counting: unigram %.2f, "
                "Kneser-Ney 3-gram %.2f",
                static_cast<long>(training.size()), static_cast<long>(vocabulary), unit.c_str(),
                text::unigram_perplexity(training, validation, vocabulary),
                text::KneserNey(training, vocabulary).perplexity(validation));
  return line;
}

}  // namespace gpt
