#pragma once
/// \file
/// A program's model as a tree of torch modules, and what their forwards consist of.

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// What a forward needs besides its input.
struct Call {
  int rank = 0;
  int64_t seed = 0;
  bool updates_buffers = true;
  /// Called in the backward of a Pause; it has to outlive the graphs.
  const std::function<void()>* pause = nullptr;
  /// The node at whose output backward throws; -1: none.
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

/// The identity, whose backward may be held up.
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

/// Subtracts `mean`, a buffer that follows the mean of the samples.
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

/// The initial values of a parameter, different at every place of a model.
inline torch::Tensor first_values(at::IntArrayRef sizes, torch::Dtype dtype, int place) {
  return (torch::sin(numbers_of(sizes) * 1.3 + 0.7 * place) * 0.4).to(dtype);
}

inline torch::Tensor input_of(at::IntArrayRef sizes, const Call& call) {
  return torch::sin(numbers_of(sizes) * (0.9 + 0.1 * static_cast<double>(call.seed)) + call.rank);
}

/// The tensor with which a parameter of these whole sizes is overwritten or multiplied.
inline torch::Tensor whole_operand(at::IntArrayRef sizes, double value, torch::Dtype dtype) {
  return torch::cos(numbers_of(sizes) * 0.7 + value).to(dtype);
}

/// What a rank throws in a kThrow statement.
struct Planned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A parameter. A tied one appears once, for the first node that has it.
struct NetParameter {
  torch::Tensor tensor;
  bool is_ignored = false;
  int owner = 0;  ///< the node whose group takes it
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
  /// If `recomputes`, the nodes say what is recomputed; otherwise nothing is.
  Net(const Program& program, const Model& model, bool recomputes);

  std::vector<std::shared_ptr<NodeModule>> modules;  // by node; a module that stands twice has both places
  std::vector<NetParameter> parameters;
  std::vector<torch::Tensor> buffers;
  /// Group nodes in the order in which they are sharded: children before parents, the root last.
  std::vector<int> group_nodes;

  /// On every rank but 0, changes the values of buffers and of all parameters that are not ignored.
  void begin_apart(int rank);
  std::vector<torch::Tensor> tensors() const;
  /// The parameters of a group.
  std::vector<torch::Tensor> owned_by(int group) const;
  /// The ignored parameters below the module.
  std::vector<torch::Tensor> ignored_below(int node) const;
};

}  // namespace fsdp::test::fuzz
