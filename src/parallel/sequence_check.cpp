#include <ATen/OpMathType.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformerlayer.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "comm/core/check.h"
#include "parallel/sequence_scope.h"

namespace fsdp {
namespace {

namespace nn = torch::nn;

template <class... Types>
bool is_any_of(const nn::Module& module) {
  return (... || (dynamic_cast<const Types*>(&module) != nullptr));
}

bool mixes_tokens(const nn::Module& module) {
  if (const auto* conv = dynamic_cast<const nn::Conv1dImpl*>(&module))
    return conv->options.kernel_size()->front() != 1;
  return is_any_of<nn::MultiheadAttentionImpl, nn::TransformerImpl, nn::TransformerEncoderLayerImpl,
                   nn::TransformerDecoderLayerImpl, nn::RNNImpl, nn::LSTMImpl, nn::GRUImpl>(module);
}

// Module::name() keeps what it finds in the module, which threads may share.
std::string type_of(const nn::Module& module) {
  auto name = c10::demangle(typeid(module).name());
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

// Of what is computed in parts, beside rounding.
double tolerance_of(const at::Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type()) == tensor.scalar_type() ? 1e-3 : 5e-2;
}

}  // namespace

void check_sequence_split(const SequenceParallel& sequence, const torch::nn::Module& model,
                          const std::function<at::Tensor(const at::Tensor&)>& forward, const at::Tensor& input,
                          int64_t dim) {
  const auto where = parallel::SequenceScope::current()->group()->where("check_sequence_split");
  for (const auto& module : model.named_modules(std::string(), /*include_self=*/false))
    if (mixes_tokens(*module.value()))
      require(false, where, "expected modules that treat tokens one by one, found '", module.key(), "', a ",
              type_of(*module.value()),
              ", which would see this rank's tokens alone. Write attention with torch::scaled_dot_product_attention.");
  const at::NoGradGuard no_grad;
  at::Tensor whole;
  {
    const parallel::SequenceScope::Entered none(nullptr);
    whole = forward(input);
  }
  const auto parts = sequence.unshard(forward(sequence.shard(input, dim)), dim);
  require(parts.sizes() == whole.sizes(), where, "expected a result of sizes ", whole.sizes(),
          " from the ranks' parts, found ", parts.sizes(), '.');
  const auto most = [](const at::Tensor& tensor) { return tensor.abs().max().item<double>(); };
  const double difference = most(parts - whole);
  require(difference <= tolerance_of(whole) * std::max(1.0, most(whole)), where,
          "expected the ranks' parts to give what the whole sequence does, found a difference of ", difference,
          " in numbers up to ", most(whole), ". Something in the model mixes tokens without ",
          "torch::scaled_dot_product_attention, or takes positions without fsdp::positions.");
}

}  // namespace fsdp
