#include "sampling.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

namespace gpt {

std::string write_sample(Model& model, const Text& text, const Arguments& arguments) {
  const torch::NoGradGuard no_grad;
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(arguments.seed));
  auto ids = torch::full({1, 1}, text.encode('\n'), torch::kInt64);
  std::string sample;
  for (int64_t i = 0; i < arguments.sample; ++i) {
    // The model has positions for `seq` characters only.
    const auto context = ids.slice(1, -arguments.seq);
    const auto logits = model(context).select(1, -1);
    const auto next = torch::multinomial(torch::softmax(logits / arguments.temperature, -1), 1, false, generator);
    ids = torch::cat({context, next}, 1);
    sample += text.decode(next.item<int64_t>());
  }
  return sample;
}

}  // namespace gpt
