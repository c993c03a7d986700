#pragma once
/// \file
/// A model of a program as a tree of torch modules.

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// What a forward needs to know beside its input.
struct Call {
  int rank = 0;
  int64_t seed = 0;
  bool updates_buffers = true;
  /// Called in the backward of a kPause; lives as long as graphs do.
  const std::function<void()>* pause = nullptr;
  /// The node at whose output backward throws.
  int throws_at = -1;
};

/// What a rank throws in kThrow.
struct Planned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A parameter; a tied one once, of the first node that has it.
struct NetParameter {
  torch::Tensor tensor;
  bool is_ignored = false;
};

/// The module of one node. Its values depend on nothing but the program.
class NodeModule : public torch::nn::Module {
 public:
  NodeModule(const Program& program, const Model& model, int node,
             const std::vector<std::shared_ptr<NodeModule>>& before, bool recomputes);
  void add_child(int node, const std::shared_ptr<NodeModule>& child);
  torch::Tensor forward(const torch::Tensor& h, const Call& call);

 private:
  torch::Tensor add_children(const torch::Tensor& h, const Call& call);
  torch::Tensor compute(const torch::Tensor& h, const Call& call);
  torch::Tensor run(const torch::Tensor& h, const Call& call);
  /// In the dtype of compute; where fsdp sees to that it is the parameter.
  torch::Tensor own(size_t place) const {
    return own_[place].scalar_type() == dtype_ ? own_[place] : own_[place].to(dtype_);
  }
  void add_parameter(const std::vector<int64_t>& sizes, bool trains = true);

  const Node spec_;
  const torch::ScalarType dtype_;  // in which it computes
  const Recompute recompute_;
  const int number_;
  std::vector<std::shared_ptr<NodeModule>> children_;
  std::vector<torch::Tensor> own_;
  torch::Tensor mean_;  // of kRunning
};

struct Net {
  /// `recomputes`: as the nodes say, else nothing is computed again.
  Net(const Program& program, const Model& model, bool recomputes);

  std::vector<std::shared_ptr<NodeModule>> modules;  // by node; one that stands twice has both places
  std::vector<NetParameter> parameters;
  std::vector<torch::Tensor> buffers;
  /// Group nodes in the order in which they are sharded: children before parents, the root last.
  std::vector<int> group_nodes;
  /// By parameter: the node of the group that takes it.
  std::vector<int> owners;

  /// Gives the rank, unless it is 0, other values than the others have, of buffers and all but ignored parameters.
  void begin_apart(int rank);
  std::vector<torch::Tensor> tensors() const;
  /// The parameters of a group.
  std::vector<torch::Tensor> owned_by(int group) const;
  /// Of the ignored parameters those under the module.
  std::vector<torch::Tensor> ignored_below(int node) const;
};

}  // namespace fsdp::test::fuzz
