#pragma once
/// \file
/// Whether what an element-wise operator takes beside the rows of a parameter lines up with them; what operators make
/// of rows, and whose rows they were; in which dtype operators on whole parameters compute.
///
/// Note [Results of rows]. Outside a scope `p.grad().pow(2)` and `zeros_like(p)` are new tensors that have this
/// rank's rows only, so a sum of them is another number on every rank. Each carries the sharded key, so that the
/// interceptor sees what is computed with it, and a mark that says whose rows it has. The mark lies in the tensor,
/// where it has no lifetime to follow, and detach() copies it. Nothing is marked where one rank has all rows, nor in
/// LocalRows. Results have rows as their first dim: what would put them elsewhere is refused.

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/access_rules.h"
#include "runtime/operator_traits.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {

// Pure functions, which decide by the whole parameter's sizes where they can, so that ranks with all rows, some and
// none decide alike.

/// Where a tensor on the storage of rows, or of their gradient, has them.
struct RowsIn {
  int64_t dim = 0;
  int64_t first = 0, count = 0;  ///< of this rank
  int64_t all = 0;               ///< of the whole parameter
  bool operator==(const RowsIn&) const = default;
};

/// Of rows and of views that have all of them: transposed, of some columns, flat. None of other tensors.
std::optional<RowsIn> find_rows(const at::Tensor& rows, const ParamSlot& slot);

/// Whether a tensor of the rows' sizes is not a transposed one.
inline bool has_rows_first(const at::Tensor& tensor, const ParamSlot& slot) {
  const auto found = find_rows(tensor, slot);
  return !found || found->dim == 0;
}

/// Says how the other operands fit the rows of `own`, and which operand decides that. Adds to `replacements` those that
/// must be narrowed to the rows.
std::pair<Fit, const at::Tensor*> fit_of_others(const OperatorCall& call, const OperatorCall::Operand& operand,
                                                const Part& own, std::vector<Replacement>& replacements);

using MarkPtr = c10::intrusive_ptr<c10::BackendMeta>;  // to a RowMark

/// What a tensor is part of, by its mark or by its storage. Any thread.
std::optional<Part> part_of(const at::Tensor& tensor);

/// An element-wise operator on results of one parameter's rows and numbers alone, such as `exp_avg.mul_(0.9)` of an
/// optimizer's state, needs nothing before it runs; all else goes by `prepare`.
struct AmongResults {
  bool holds = false;
  MarkPtr made = nullptr;  ///< of what it makes; null: nothing is to be marked
};
AmongResults among_results(const OperatorTraits& traits, std::span<const c10::IValue> arguments);

void mark_as_rows(const at::Tensor& tensor, const MarkPtr& mark);

/// Which tensors an operator makes of rows, or writes from them. The marks are worked out before it runs.
class RowResults {
 public:
  void add(const OperatorCall& call, const OperatorCall::Operand& operand, const Part& part);
  /// Records which ordinary tensors the operator will write. Call it after the operands were added.
  void add_written(const OperatorCall& call);
  bool empty() const { return marks_.empty(); }
  /// Marks a result, after the operator has run. `element` is its position in a list.
  void mark_made(const at::Tensor& result, size_t element) const;
  void mark_written() const;

 private:
  struct Written {
    at::Tensor tensor;
    MarkPtr mark;
  };
  bool of_lists_ = false;
  c10::SmallVector<MarkPtr, 1> marks_;  // of each element of lists, otherwise one; null: no rows
  c10::SmallVector<Written, 1> written_;
};

/// Note [Operands of low precision]. An operator computes in the dtype of the whole parameters that it reads: its other
/// floating-point operands are cast to that, and autograd records the casts. So a model needs no casts where parts of
/// different precision meet. Some operands stay as they are: views and what is written, which would be views of a copy;
/// tensors without dims, which LibTorch's own promotion leaves out; and running statistics.
class ComputeDtype {
 public:
  /// The operator reads a slot's whole parameter. Of several the first one with a floating-point dtype counts.
  void add(const ParamSlot& slot);
  /// Adds the casts.
  void cast_others(const OperatorCall& call, std::vector<Replacement>& replacements) const;

 private:
  std::optional<c10::ScalarType> dtype_;
  bool casts_ = false;  // some policy says so
};

}  // namespace fsdp::runtime
