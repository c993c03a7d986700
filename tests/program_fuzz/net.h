#pragma once
/// \file
/// A model of a program as a tree of torch modules.

#include <torch/nn/module.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "program_fuzz/parts.h"
#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// What a rank throws in kThrow.
struct Planned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A parameter; a tied one once, of the first node that has it.
struct NetParameter {
  torch::Tensor tensor;
  bool is_ignored = false;
  int owner = 0;  ///< the node of the group that takes it
};

/// The module of one node. Its values depend on nothing but the program.
class NodeModule : public torch::nn::Module {
 public:
  NodeModule(const Program& program, const Model& model, int node,
             const std::vector<std::shared_ptr<NodeModule>>& before, bool recomputes);
  void add_child(int node, const std::shared_ptr<NodeModule>& child);
  torch::Tensor forward(const torch::Tensor& h, const Call& call);

 private:
  torch::Tensor run(const torch::Tensor& h, const Call& call);

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

  /// Gives the rank, unless it is 0, other values than the others have, of buffers and all but ignored parameters.
  void begin_apart(int rank);
  std::vector<torch::Tensor> tensors() const;
  /// The parameters of a group.
  std::vector<torch::Tensor> owned_by(int group) const;
  /// Of the ignored parameters those under the module.
  std::vector<torch::Tensor> ignored_below(int node) const;
};

}  // namespace fsdp::test::fuzz
