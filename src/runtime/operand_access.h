#pragma once
/// \file
/// What happens before an operator computes with sharded parameters, and after.

#include <c10/util/SmallVector.h>

#include <memory>

#include "runtime/operator_traits.h"
#include "runtime/param_group.h"
#include "runtime/row_operands.h"

namespace torch::autograd {
struct Node;
}

namespace fsdp::runtime {

/// The groups whose whole parameters an operator takes. While it computes, other threads of the rank leave their memory
/// alone.
class OperandGroups {
 public:
  OperandGroups() = default;
  OperandGroups(const OperandGroups&) = delete;
  OperandGroups& operator=(const OperandGroups&) = delete;
  ~OperandGroups() {
    for (const auto& group : groups_) group->pins.remove();
  }
  /// `parameter`: null if the operand is another tensor on its storage. Under the rank's lock.
  void add_once(std::shared_ptr<ParamGroup> group, const at::TensorImpl* parameter);
  bool empty() const { return groups_.empty(); }
  /// If autograd recorded the operator that gave `result`, its node shows whole parameters before it runs backward.
  /// Nodes below the number `first` are of earlier operators: some, such as type_as, give an operand back.
  void hook(const at::Tensor& result, uint64_t first);

 private:
  struct Parameter {
    const at::TensorImpl* tensor;
    const ParamGroup* group;
  };
  bool is_observed(const torch::autograd::Node& node, const ParamGroup* group) const;

  c10::SmallVector<std::shared_ptr<ParamGroup>, 2> groups_;
  c10::SmallVector<Parameter, 2> parameters_;  // among the operands
  const void* last_node_ = nullptr;
  bool scopes_know_ = true;  // that autograd recorded an operator in them
  bool observers_on_ = true;
};

/// Judges what the operator does with rows, gradients and whole parameters, gathers what it reads, notes what it
/// writes, whose whole parameters it takes and what of its results will be rows. Replaces arguments on the stack: those
/// of whole sizes by their rows. Collective with the other ranks if a group must be gathered. UsageError if the
/// operator would mean something else on this rank's rows. Any thread.
void prepare(const OperatorCall& call, OperandGroups& takes_whole, RowResults& results);

}  // namespace fsdp::runtime
