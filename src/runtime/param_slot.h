#pragma once
/// \file
/// One parameter of a group: the tensor that everybody holds, and what it shows.

#include <ATen/core/Tensor.h>
#include <fsdp/tensor_cut.h>

#include <optional>
#include <string>
#include <vector>

#include "memory/form.h"
#include "memory/part_storage.h"
#include "runtime/param_rows.h"

namespace fsdp::runtime {

/// A parameter before sharding.
struct NamedParameter {
  std::string name;  // fully qualified, for messages
  at::Tensor tensor;
};

/// What a MixedPrecisionPolicy makes of a parameter: the dtype of whole values, with which operators compute, and of
/// gradients while they are summed over the ranks.
struct Precision {
  c10::ScalarType whole, reduced;
  /// Whether other operands of an operator are cast to the first, see Note [Operands of low precision].
  bool casts_operands = false;

  bool operator==(const Precision&) const = default;
};

/// A parameter that a group is made of.
struct GroupMember : NamedParameter {
  /// Unset: its own dtype in all.
  std::optional<Precision> precision = {};
  /// See ParamSlot::form; unset: as the tensor is.
  std::optional<memory::Form> form = {};
  /// Of which whole tensor it is a part, if it is one.
  std::optional<TensorCut> cut = {};
};

/// The module's, the optimizer's and the user's tensor is one object for ever; what changes is what it shows: this
/// rank's rows, or the whole parameter, which may be without memory ("hollow"). Thread safety: under the rank's lock.
class ParamSlot {
 public:
  /// `placed`: where the parameter lies in its plane; `rows`: those that this rank has.
  ParamSlot(const GroupMember& parameter, const layout::PlacedItem& placed, layout::RowRange rows,
            memory::Form rows_form, memory::Form whole_form);

  const std::string& name() const { return name_; }
  void rename(std::string name) { name_ = std::move(name); }
  /// What its group's policy says of it, if that has one.
  const std::optional<Precision>& precision() const { return precision_; }
  /// See GroupMember.
  const std::optional<TensorCut>& cut() const { return cut_; }
  /// What the parameter is, whatever its group makes of it: the dtype of its rows, on the device of its whole values.
  memory::Form form() const { return {rows_dtype_, whole_device_}; }
  c10::IntArrayRef sizes() const { return sizes_; }
  /// See ParamRows.
  c10::IntArrayRef row_sizes() const { return row_sizes_; }
  /// How many of its first dims its rows take together; 0 for a scalar.
  size_t joined_dims() const { return sizes_.empty() ? 0 : sizes_.size() + 1 - row_sizes_.size(); }
  layout::RowRange rows() const { return rows_; }
  int64_t numel() const { return c10::multiply_integers(sizes_); }
  int64_t row_numel() const { return c10::multiply_integers(row_sizes().slice(1)); }
  int64_t rows_numel() const { return rows_.count * row_numel(); }

  /// The parameter, undefined when nobody holds it any more.
  at::Tensor tensor() const;
  /// Whether `tensor` is the parameter itself.
  bool is(const at::Tensor& tensor) const { return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl(); }
  bool requires_grad() const;

  /// A tensor of the rows' sizes and strides on `storage`, marked as sharded.
  at::Tensor rows_on(const memory::PartStorage& storage) const;
  /// For those who need not know of groups.
  ParamRows param_rows() const { return {name_, sizes_, row_sizes_, rows_, rows_tensor, tensor(), cut_.has_value()}; }

  /// The elements of `gradient`, of the parameter's sizes, as a flat tensor in the order in which the parameter lies in
  /// memory; a copy only if the gradient lies in another order.
  at::Tensor flat_in_memory_order(const at::Tensor& gradient) const;

  void show_rows() const;
  void show_whole() const;
  /// Call when the whole storage may have gone to another device: `whole_tensor` is on the same one then.
  void follow_whole_storage();

  memory::PartStorage rows_storage, whole_storage;
  /// The templates that the parameter shows.
  at::Tensor rows_tensor, whole_tensor;
  /// What raw access says while the whole parameter has no memory.
  std::string no_memory_error;
  /// The storage of the gradient that was handed out last; weak, so that zero_grad() frees it.
  c10::weak_intrusive_ptr<c10::StorageImpl> gradient_storage;
  /// The mark of what operators make of the rows; see Note [Results of rows].
  c10::intrusive_ptr<c10::BackendMeta> mark;

 private:
  std::string name_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::ScalarType rows_dtype_, whole_dtype_;
  c10::Device whole_device_;
  std::optional<Precision> precision_;
  std::optional<TensorCut> cut_;
  std::vector<int64_t> sizes_, strides_, row_sizes_, row_strides_;
  layout::RowRange rows_;
};

}  // namespace fsdp::runtime
