#pragma once
/// \file
/// A program's model as a tree of torch modules, and the operations of their forwards.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// Everything that a forward needs besides its input.
struct Call {
  int rank = 0;
  int64_t seed = 0;
  bool updates_buffers = true;
  /// Function that the backward of a Pause calls. It must outlive the graphs.
  const std::function<void()>* pause = nullptr;
  /// Node at whose output backward throws, or -1 if it does not throw.
  int throws_at = -1;
};

/// A custom autograd Function that computes tanh of a linear layer.
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

/// The identity. Its backward calls `pause`, so a rank can be held up there.
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

/// Subtracts `mean`, a buffer that tracks the mean of the samples.
inline torch::Tensor less_running_mean(const torch::Tensor& h, torch::Tensor mean, const Call& call) {
  auto centered = (h - mean.clone()).to(h.scalar_type());
  if (!torch::GradMode::is_enabled() || !call.updates_buffers) return centered;
  const torch::NoGradGuard no_grad;
  mean.mul_(0.75).add_(h.mean(0), 0.25);
  return centered;
}

/// Returns the rows of `table` that the samples choose.
inline torch::Tensor chosen_rows(const torch::Tensor& h, const torch::Tensor& table, const Call& call) {
  const auto ids = torch::arange(h.size(0), torch::kLong) * 7 + call.seed + 3 * call.rank;
  return torch::embedding(table, ids.remainder(table.size(0)));
}

inline torch::Tensor numbers_of(at::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).view(sizes);
}

/// Returns initial values of a parameter, which differ between places of a model.
inline torch::Tensor first_values(at::IntArrayRef sizes, torch::Dtype dtype, int place) {
  return (torch::sin(numbers_of(sizes) * 1.3 + 0.7 * place) * 0.4).to(dtype);
}

inline torch::Tensor input_of(at::IntArrayRef sizes, const Call& call) {
  return torch::sin(numbers_of(sizes) * (0.9 + 0.1 * static_cast<double>(call.seed)) + call.rank);
}

/// Returns the tensor that overwrites or multiplies a parameter with these whole sizes.
inline torch::Tensor whole_operand(at::IntArrayRef sizes, double value, torch::Dtype dtype) {
  return torch::cos(numbers_of(sizes) * 0.7 + value).to(dtype);
}

/// The exception that a rank throws in a kThrow statement.
struct Planned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A parameter of the net. A tied parameter appears once, at the first node that has it.
struct NetParameter {
  torch::Tensor tensor;
  bool is_ignored = false;
  int owner = 0;  ///< node whose param group has the parameter
};

/// The module of one node. Its values depend only on the program.
class NodeModule : public torch::nn::Module {
 public:
  NodeModule(const Program& program, const Model& model, int node,
             const std::vector<std::shared_ptr<NodeModule>>& before, bool recomputes);
  void add_child(int node, const std::shared_ptr<NodeModule>& child);
  torch::Tensor forward(const torch::Tensor& h, const Call& call);

 private:
  torch::Tensor run(const torch::Tensor& h, const Call& call);

  const Node spec_;
  const torch::ScalarType dtype_;  // the dtype in which it computes
  const Recompute recompute_;
  const int number_;
  std::vector<std::shared_ptr<NodeModule>> children_;
  std::vector<torch::Tensor> own_;
  torch::Tensor mean_;  // only for kRunning
};

struct Net {
  /// If `recomputes` is true, the nodes say which activations are recomputed; otherwise none are.
  Net(const Program& program, const Model& model, bool recomputes);

  std::vector<std::shared_ptr<NodeModule>>
      modules;  // indexed by node; a module that stands at two places appears twice
  std::vector<NetParameter> parameters;
  std::vector<torch::Tensor> buffers;
  /// The nodes with a param group, in the order in which they are sharded: children before parents, the root last.
  std::vector<int> group_nodes;

  /// Changes the values of buffers and of all parameters that are not ignored, on every rank but 0.
  void begin_apart(int rank);
  std::vector<torch::Tensor> tensors() const;
  /// Returns the parameters of a group.
  std::vector<torch::Tensor> owned_by(int group) const;
  /// Returns the ignored parameters of the module and of those below it.
  std::vector<torch::Tensor> ignored_below(int node) const;
};

}  // namespace fsdp::test::fuzz
