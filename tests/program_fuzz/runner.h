#pragma once
/// \file
/// What one rank does by itself, sharded or not: forwards, autograd::grad, backwards, and the graphs that they leave.

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "program_fuzz/net.h"
#include "program_fuzz/values.h"

namespace fsdp::test::fuzz {

struct Graph {
  torch::Tensor x = {}, h = {}, y = {};
  uint32_t models = 0;  // bits
};

class Runner {
 public:
  Runner(const Program& program, int number) : rank(number), nets(kModels), program_(program) {}

  /// Statements of the same names, without scopes.
  void forward(const Statement& statement);
  void evaluate(const Statement& statement);
  void grad(const Statement& statement);
  /// autograd's part: gradients of parameters are as autograd leaves them.
  void backward(const Statement& statement);
  /// The input of a forward and half of it; the loss of kThrow.
  torch::Tensor loss_that_throws(const Statement& statement, bool throws);

  /// What a rank brings to all_reduce and its kin, another thing on every rank.
  torch::Tensor numbers(const Statement& statement) const { return input(statement).detach(); }

  Graph& graph(int slot) { return graphs_[static_cast<size_t>(slot)]; }
  void forget_graphs() { graphs_ = {}; }
  uint32_t models_of(const Statement& statement) const;
  Net& net(int model) { return *nets[static_cast<size_t>(model)]; }

  /// How a forward calls the module of its node.
  std::function<torch::Tensor(const Statement&, const torch::Tensor& x, const Call&)> apply =
      [this](const Statement& s, const torch::Tensor& x, const Call& call) { return module(s).forward(x, call); };
  NodeModule& module(const Statement& s) { return *net(s.model).modules[static_cast<size_t>(s.node)]; }

  /// kFreeze.
  void freeze(const Statement& s) {
    for (auto& parameter : module(s).parameters(/*recurse=*/false)) parameter.set_requires_grad(!s.flag);
  }

  /// Whether kScaledStep finds any.
  bool has_gradients(const Statement& s) {
    return std::ranges::any_of(net(s.model).parameters, [](const NetParameter& parameter) {
      return !parameter.is_ignored && parameter.tensor.grad().defined();
    });
  }

  /// What kWriteOneRow writes.
  torch::Tensor row_parameter(const Statement& s) { return module(s).parameters(/*recurse=*/false)[0]; }

  void record(const Statement& statement, Value value);
  void record(const Statement& statement, const torch::Tensor& tensor) { record(statement, value_of(tensor)); }

  const int rank;
  std::vector<std::unique_ptr<Net>> nets;
  std::function<void()> pause;  // in the backward of a kPause
  std::vector<Value> values;

 private:
  torch::Tensor input(const Statement& statement) const;
  Call call(const Statement& statement) const { return {rank, statement.seed, /*updates_buffers=*/true, &pause}; }

  const Program& program_;
  std::array<Graph, kSlots> graphs_;
};

/// What a rank brings to mean().
inline double first_of(const torch::Tensor& numbers) { return numbers.flatten()[0].item<double>(); }

/// What kWriteWhole copies, or multiplies with, for a parameter of these whole sizes.
torch::Tensor whole_operand(const Statement& statement, at::IntArrayRef sizes, const torch::Tensor& parameter);
/// The row that kWriteOneRow writes, of a parameter of these whole sizes.
inline int64_t row_of(const Statement& s, at::IntArrayRef sizes) { return sizes.empty() ? 0 : s.seed % sizes[0]; }
void write_whole(const Statement& statement, torch::Tensor parameter, const torch::Tensor& operand);

/// torch's own optimizers; the fused ones are of the same kind and options.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind, bool fused, std::vector<torch::Tensor> tensors);

}  // namespace fsdp::test::fuzz
