#pragma once
/// \file
/// The dtype in which an operator that reads parameters of a MixedPrecisionPolicy computes.

#include <vector>

#include "runtime/operator_traits.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {

/// Note [Operands of low precision]. An operator computes in the dtype of the whole parameters that it reads, by the
/// policies of their groups: its other floating-point operands are cast to that, and autograd records the casts. So a
/// model needs no casts where parts of different precision meet, and what no parameter takes part in computes as it is
/// given. Some operands stay as they are: views and what is written, which would be views of a copy; tensors without
/// dims, which LibTorch's own promotion leaves out; and running statistics.
///
/// Of one operator; filled as its operands are judged.
class ComputeDtype {
 public:
  /// The operator reads a slot's whole parameter.
  void add(const ParamGroup& group, const ParamSlot& slot);
  /// Adds the casts. UsageError if the parameters have several dtypes.
  void cast_others(const OperatorCall& call, std::vector<Replacement>& replacements) const;

 private:
  struct Read {
    const ParamGroup* group = nullptr;
    const ParamSlot* slot = nullptr;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };
  Read first_, other_;  // other: of another dtype
  bool casts_ = false;  // some policy says so
};

}  // namespace fsdp::runtime
