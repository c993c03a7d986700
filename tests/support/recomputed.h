#pragma once
/// \file
/// A part of a model that runs again in backward, as users write it themselves.

#include <torch/torch.h>

namespace fsdp::test {

/// The second run has a backward of its own inside the outer one. `part`, a module, outlives the graph.
template <class Part>
struct RecomputedPart : torch::autograd::Function<RecomputedPart<Part>> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, Part* part) {
    context->save_for_backward({x});
    context->saved_data["part"] = reinterpret_cast<int64_t>(part);
    return part->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto x = context->get_saved_variables()[0].detach().requires_grad_();
    const torch::AutoGradMode recording(true);
    auto* part = reinterpret_cast<Part*>(context->saved_data["part"].toInt());
    torch::autograd::backward({part->forward(x)}, gradients);
    return {x.grad(), torch::Tensor()};
  }
};

template <class Part>
torch::Tensor recomputed(Part& part, const torch::Tensor& x) {
  return RecomputedPart<Part>::apply(x, &part);
}

}  // namespace fsdp::test
