#pragma once
/// \file
/// One parameter of a group: the tensor that the module and the optimizer hold, the values that it shows, and its
/// gradient during a backward.

#include <ATen/core/Tensor.h>
#include <fsdp/tensor_cut.h>

#include <optional>
#include <string>
#include <vector>

#include "layout/planes.h"
#include "memory/flat_buffer.h"

namespace fsdp::runtime {

struct NamedParameter {
  std::string name;  // fully qualified, for messages
  at::Tensor tensor;
};

/// The dtypes that a MixedPrecisionPolicy gives to a parameter: `whole` for the values with which operators compute,
/// `reduced` for gradients while they are summed over the ranks.
struct Precision {
  c10::ScalarType whole, reduced;
  /// True if the other operands of an operator are cast to `whole`, see Note [Operands of low precision].
  bool casts_operands = false;

  bool operator==(const Precision&) const = default;
};

struct GroupMember : NamedParameter {
  std::optional<Precision> precision = {};  ///< dtypes of whole values and sums; if unset, the parameter's own dtype
  std::optional<memory::Form> form = {};    ///< dtype and device (see ParamSlot::form); if unset, those of `tensor`
  std::optional<TensorCut> cut = {};        ///< how the tensor axis cuts the parameter; unset if it is not cut
};

/// Where a slot's missing gradient comes from: the outermost graph task (kTask), or a backward inside that task
/// (kInside), as when activation checkpointing runs a forward again.
enum class GradientSource : uint8_t { kNone, kTask, kInside };

struct SlotPlace {
  size_t plane = 0, item = 0;     ///< index of the slot's plane in the group, and of the slot in that plane
  size_t given = 0;               ///< index of the parameter in GroupSpec::parameters
  size_t bucket = 0, number = 0;  ///< index of the slot's bucket in the group, and of the slot in that bucket
};

/// One parameter of a group. The tensor that the module, the optimizer and the user hold stays the same object. What
/// changes is what it shows: this rank's rows, or the whole parameter, which may have no memory ("hollow"). Thread
/// safety: the caller holds the rank's lock.
class ParamSlot {
 public:
  ParamSlot(const GroupMember& parameter, const SlotPlace& place, const layout::PlacedItem& placed,
            layout::RowRange rows, memory::Form rows_form, memory::Form whole_form);

  const std::string& name() const { return name_; }
  void rename(std::string name) { name_ = std::move(name); }
  const std::optional<Precision>& precision() const { return precision_; }
  const std::optional<TensorCut>& cut() const { return cut_; }
  /// Returns the dtype of the rows and the device of the whole values: the dtype and device that the parameter has for
  /// the user, whatever the policies for precision and offloading do inside.
  memory::Form form() const { return {rows_dtype_, whole_device_}; }
  c10::IntArrayRef sizes() const { return sizes_; }
  /// Returns the parameter's sizes with the number of its rows in front: [1] for a scalar, otherwise `sizes()`, except
  /// that the dims that rows join (see Note [Planes]) become one dim.
  c10::IntArrayRef row_sizes() const { return row_sizes_; }
  /// Returns the number of leading dims that the rows join; 0 for a scalar.
  size_t joined_dims() const { return sizes_.empty() ? 0 : sizes_.size() + 1 - row_sizes_.size(); }
  layout::RowRange rows() const { return rows_; }
  int64_t numel() const { return c10::multiply_integers(sizes_); }
  int64_t row_numel() const { return c10::multiply_integers(row_sizes().slice(1)); }
  int64_t rows_numel() const { return rows_.count * row_numel(); }
  /// These functions return where, in the plane, the parameter's first element and the first element of this rank's
  /// rows lie.
  int64_t offset() const { return offset_; }
  int64_t offset_of_rows() const { return offset_ + rows_.first * row_numel(); }

  at::Tensor tensor() const;
  bool is(const at::Tensor& tensor) const { return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl(); }
  bool requires_grad() const;

  /// Returns a tensor of the rows' sizes and strides on `storage`, marked as sharded.
  at::Tensor rows_on(const memory::PartStorage& storage) const;
  /// Copies this rank's rows of `whole`, a tensor of the parameter's sizes, to `values`, which has the rows' sizes. If
  /// the value of `whole` is deferred, this function computes it first.
  void copy_rows(const at::Tensor& whole, const at::Tensor& values) const;
  /// Returns `gradient`, which has the parameter's sizes, as a tensor of one dim in the order in which the parameter's
  /// elements lie in memory. The result is a copy if the gradient's strides differ from the parameter's.
  at::Tensor flat_in_memory_order(const at::Tensor& gradient) const;

  void show_rows() const;
  void show_whole() const;

  SlotPlace place;
  memory::PartStorage rows_storage, whole_storage;
  /// The tensors whose storage and sizes the parameter takes over in `show_rows` and `show_whole`.
  at::Tensor rows_tensor, whole_tensor;
  std::string no_memory_error;  ///< the error of raw access while the whole parameter has no memory
  /// The storage of the rows' gradient that was last put into `.grad`; weak, so that zero_grad() frees it.
  c10::weak_intrusive_ptr<c10::StorageImpl> gradient_storage;
  /// The mark of tensors that operators compute from the rows; see Note [Results of rows].
  c10::intrusive_ptr<c10::BackendMeta> mark;

  // The parameter's gradients during a backward, in which autograd uses `.grad` for whole gradients.
  at::Tensor parked;         // the rows' gradient, which was in `.grad` before
  memory::HandedOn arrived;  // the whole gradient, which waits for its reduction
  memory::Charge charge;     // the bytes of `arrived`
  bool waits = false;        // true if a gradient waits for its reduction, even one that `fsdp::join` leaves out
  GradientSource missing_from = GradientSource::kNone;
  bool was_read_unrecorded = false;  // true if an operator that autograd did not record has read it in this scope

 private:
  std::string name_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::ScalarType rows_dtype_;
  c10::Device whole_device_;
  std::optional<Precision> precision_;
  std::optional<TensorCut> cut_;
  std::vector<int64_t> sizes_, strides_, row_sizes_, row_strides_;
  layout::RowRange rows_;
  int64_t offset_;
};

}  // namespace fsdp::runtime
