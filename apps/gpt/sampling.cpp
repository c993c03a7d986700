#include "sampling.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace gpt {
namespace {

/// Returns the probabilities from which the next token is drawn. `logits` has the shape [vocabulary] and is on the CPU.
torch::Tensor expectations(torch::Tensor logits, const Arguments& arguments) {
  if (!logits.isfinite().all().item<bool>())
    throw std::runtime_error(
        "the model's outputs are not finite, so no sample can be drawn from them: try a smaller --lr");
  logits = logits.to(torch::kDouble) - logits.max();  // The likeliest token's logit is 0 at any temperature.
  if (arguments.top_k > 0) {
    const int64_t kept = std::min(arguments.top_k, logits.size(0));
    const auto least = std::get<0>(logits.topk(kept)).select(0, -1);
    logits = logits.masked_fill(logits < least, -std::numeric_limits<double>::infinity());
  }
  return torch::softmax(logits / arguments.temperature, -1);
}

}  // namespace

text::Tokens sample_start(const Text& text, const Arguments& arguments) {
  if (!arguments.prompt.empty()) {
    auto start = text.tokenizer->encode(arguments.prompt);
    if (start.empty()) throw std::invalid_argument("--prompt has no " + std::string(text.tokenizer->unit()));
    return start;
  }
  try {
    return text.tokenizer->encode("\n");
  } catch (const std::invalid_argument&) {
    return {0};
  }
}

std::string write_sample(Model& model, const NextToken& next_token, const Text& text, text::Tokens start,
                         const Arguments& arguments) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(arguments.seed));
  auto ids = torch::tensor(start).unsqueeze(0);
  text::Tokens written = arguments.prompt.empty() ? text::Tokens{} : std::move(start);
  for (int64_t i = 0; i < arguments.sample; ++i) {
    // The model has position embeddings for only `seq` tokens.
    const auto context = ids.slice(1, -arguments.seq);
    const auto next = torch::multinomial(expectations(next_token(context).cpu(), arguments), 1, false, generator);
    ids = torch::cat({context, next.unsqueeze(0)}, 1);
    written.push_back(next.item<int64_t>());
  }
  model->train();
  return text.tokenizer->decode(written);
}

}  // namespace gpt
