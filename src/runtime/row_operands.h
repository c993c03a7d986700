#pragma once
/// \file
/// Decides whether the other operands of an element-wise operator fit the rows of a parameter, which tensors operators
/// compute from rows, and in which dtype operators on whole parameters compute.
///
/// Note [Results of rows]. Outside a scope `p.grad().pow(2)` and `zeros_like(p)` are new tensors that have this rank's
/// rows only, so their sum is a different number on every rank. Each carries the sharded key, so that the interceptor
/// sees the operators that take it, and a mark that names the parameter whose rows it has. The mark lies in the tensor,
/// so it lives as long as the tensor, and detach() copies it. Results are not marked if one rank has all rows, nor in
/// LocalRows. Rows lie along a result's first dim: fsdp refuses operators that would move them elsewhere.

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

// Where possible, these functions decide by the whole parameter's sizes, so that all ranks decide alike, whether they
// have all rows, some rows or none.

/// The dim of a tensor along which rows lie.
struct RowsIn {
  int64_t dim = 0;
  int64_t first = 0, count = 0;  ///< index of this rank's first row, and number of its rows
  int64_t all = 0;               ///< number of rows of the whole parameter
  bool operator==(const RowsIn&) const = default;
};

/// Finds the rows in `rows`, a tensor on the storage of the slot's rows or of their gradient. `rows` may be a view of
/// all rows: transposed, flat, or of some columns. Returns nothing for other tensors.
std::optional<RowsIn> find_rows(const at::Tensor& rows, const ParamSlot& slot);

/// Returns false if rows lie along another dim of the tensor than the first, as in a transposed view.
inline bool has_rows_first(const at::Tensor& tensor, const ParamSlot& slot) {
  const auto found = find_rows(tensor, slot);
  return !found || found->dim == 0;
}

/// Returns how the other operands fit `operand`, which has rows of `own`, and the operand that fits worst. Adds to
/// `replacements` the operands that must be narrowed to this rank's rows.
std::pair<Fit, const at::Tensor*> fit_of_others(const OperatorCall& call, const OperatorCall::Operand& operand,
                                                const Part& own, std::vector<Replacement>& replacements);

using MarkPtr = c10::intrusive_ptr<c10::BackendMeta>;  // to a RowMark

/// Returns the part to which a tensor belongs, by its mark or by its storage. Any thread may call it.
std::optional<Part> part_of(const at::Tensor& tensor);

/// Returns a value if an operator is element-wise and takes only numbers and results of one parameter's rows, such as
/// `exp_avg.mul_(0.9)` on an optimizer's state. Such an operator may run at once; all others need `prepare` in
/// interceptor.cpp. The value is the mark of the operator's results; null if they need none.
std::optional<MarkPtr> among_results(const OperatorTraits& traits, std::span<const c10::IValue> arguments);

void mark_as_rows(const at::Tensor& tensor, const MarkPtr& mark);

/// The tensors that an operator computes from rows or to which it writes rows. The marks are decided before it runs.
class RowResults {
 public:
  void add(const OperatorCall& call, const OperatorCall::Operand& operand, const Part& part);
  /// Records the ordinary tensors to which the operator will write. Must be called after `add` for all operands.
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
  c10::SmallVector<MarkPtr, 1> marks_;  // one per list element, or one without lists; null for a result without rows
  c10::SmallVector<Written, 1> written_;
};

/// Note [Operands of low precision]. An operator computes in the dtype of the whole parameters that it reads: the
/// interceptor casts its other floating-point operands to that dtype, and autograd records the casts. So a model needs
/// no casts where modules of different precision meet. Some operands keep their dtype: those that the operator writes
/// or views, because a cast would replace them by a copy; tensors without dims, which LibTorch's type promotion ignores
/// too; and running statistics.
class ComputeDtype {
 public:
  /// Notes that the operator reads a slot's whole parameter. The first floating-point parameter decides the dtype.
  void add(const ParamSlot& slot);
  /// Adds the casts to `replacements`.
  void cast_others(const OperatorCall& call, std::vector<Replacement>& replacements) const;

 private:
  std::optional<c10::ScalarType> dtype_;
  bool casts_ = false;  // true if some parameter's Precision::casts_operands is true
};

}  // namespace fsdp::runtime
