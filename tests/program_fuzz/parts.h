#pragma once
/// \file
/// What the forwards of programs are made of. A program that is printed as C++ includes this file.

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace fsdp::test::fuzz {

/// What a forward needs to know beside its input.
struct Call {
  int rank = 0;
  int64_t seed = 0;
  bool updates_buffers = true;
  /// Called in the backward of a Pause; lives as long as graphs do.
  const std::function<void()>* pause = nullptr;
  /// The node at whose output backward throws.
  int throws_at = -1;
};

/// tanh of a layer.
struct CustomLayer : torch::autograd::Function<CustomLayer> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& h,
                               const torch::Tensor& weight) {
    auto out = torch::tanh(torch::matmul(h, weight.t()));
    context->save_for_backward({h, weight, out});
    return out;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto inner = gradients[0] * (1 - saved[2] * saved[2]);
    return {torch::matmul(inner, saved[1]), torch::matmul(inner.t(), saved[0])};
  }
};

/// The identity, whose backward may take its time.
struct Pause : torch::autograd::Function<Pause> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& h, const Call& call) {
    context->saved_data["pause"] = reinterpret_cast<int64_t>(call.pause);
    return h.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto* pause = reinterpret_cast<const std::function<void()>*>(context->saved_data["pause"].toInt());
    if (pause != nullptr && *pause) (*pause)();
    return {gradients[0].clone(), torch::Tensor()};
  }
};

/// `mean` is a buffer, which follows the mean of the samples.
inline torch::Tensor less_running_mean(const torch::Tensor& h, torch::Tensor mean, const Call& call) {
  auto centered = (h - mean.clone()).to(h.scalar_type());
  if (!torch::GradMode::is_enabled() || !call.updates_buffers) return centered;
  const torch::NoGradGuard no_grad;
  mean.mul_(0.75).add_(h.mean(0), 0.25);
  return centered;
}

/// The rows of a table that the samples choose.
inline torch::Tensor chosen_rows(const torch::Tensor& h, const torch::Tensor& table, const Call& call) {
  const auto ids = torch::arange(h.size(0), torch::kLong) * 7 + call.seed + 3 * call.rank;
  return torch::embedding(table, ids.remainder(table.size(0)));
}

inline torch::Tensor numbers_of(at::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).view(sizes);
}

/// Values of a parameter, other ones at every place of a model.
inline torch::Tensor first_values(at::IntArrayRef sizes, torch::Dtype dtype, int place) {
  return (torch::sin(numbers_of(sizes) * 1.3 + 0.7 * place) * 0.4).to(dtype);
}

inline torch::Tensor input_of(at::IntArrayRef sizes, const Call& call) {
  return torch::sin(numbers_of(sizes) * (0.9 + 0.1 * static_cast<double>(call.seed)) + call.rank);
}

/// The tensor that a parameter of these whole sizes is overwritten with or multiplied by.
inline torch::Tensor whole_operand(at::IntArrayRef sizes, double value, torch::Dtype dtype) {
  return torch::cos(numbers_of(sizes) * 0.7 + value).to(dtype);
}

}  // namespace fsdp::test::fuzz
