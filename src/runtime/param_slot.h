#pragma once
/// \file
/// One parameter of a group: the tensor that everybody holds, what it shows, and its gradient in a backward.

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

/// What a MixedPrecisionPolicy makes of a parameter: the dtype of whole values, with which operators compute, and of
/// gradients while they are summed over the ranks.
struct Precision {
  c10::ScalarType whole, reduced;
  /// Whether other operands of an operator are cast to the first, see Note [Operands of low precision].
  bool casts_operands = false;

  bool operator==(const Precision&) const = default;
};

struct GroupMember : NamedParameter {
  std::optional<Precision> precision = {};  ///< unset: its own dtype in all
  std::optional<memory::Form> form = {};    ///< see ParamSlot::form; unset: as the tensor is
  std::optional<TensorCut> cut = {};        ///< of which whole tensor it is a part, if it is one
};

/// Whence a slot's gradient comes: the outermost graph task, or a backward inside it, of a forward that runs again.
enum class GradientSource : uint8_t { kNone, kTask, kInside };

struct SlotPlace {
  size_t plane = 0, item = 0;     ///< of its group, and there
  size_t given = 0;               ///< its number in the list that the group was made of
  size_t bucket = 0, number = 0;  ///< what it is reduced with, and its number there
};

/// The module's, the optimizer's and the user's tensor is one object for ever; what changes is what it shows: this
/// rank's rows, or the whole parameter, which may be without memory ("hollow"). Thread safety: under the rank's lock.
class ParamSlot {
 public:
  ParamSlot(const GroupMember& parameter, const SlotPlace& place, const layout::PlacedItem& placed,
            layout::RowRange rows, memory::Form rows_form, memory::Form whole_form);

  const std::string& name() const { return name_; }
  void rename(std::string name) { name_ = std::move(name); }
  const std::optional<Precision>& precision() const { return precision_; }
  const std::optional<TensorCut>& cut() const { return cut_; }
  /// What the parameter is, whatever its group makes of it: the dtype of its rows, on the device of its whole values.
  memory::Form form() const { return {rows_dtype_, whole_device_}; }
  c10::IntArrayRef sizes() const { return sizes_; }
  /// The sizes by which its rows count: `sizes`, of a scalar [1], with some first dims taken together where its rows
  /// are shorter than those of dim 0 (see Note [Planes]).
  c10::IntArrayRef row_sizes() const { return row_sizes_; }
  /// How many of its first dims its rows take together; 0 for a scalar.
  size_t joined_dims() const { return sizes_.empty() ? 0 : sizes_.size() + 1 - row_sizes_.size(); }
  layout::RowRange rows() const { return rows_; }
  int64_t numel() const { return c10::multiply_integers(sizes_); }
  int64_t row_numel() const { return c10::multiply_integers(row_sizes().slice(1)); }
  int64_t rows_numel() const { return rows_.count * row_numel(); }
  /// Where it begins in its plane, and where this rank's rows do, in elements.
  int64_t offset() const { return offset_; }
  int64_t offset_of_rows() const { return offset_ + rows_.first * row_numel(); }

  at::Tensor tensor() const;
  bool is(const at::Tensor& tensor) const { return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl(); }
  bool requires_grad() const;

  /// A tensor of the rows' sizes and strides on `storage`, marked as sharded.
  at::Tensor rows_on(const memory::PartStorage& storage) const;
  /// Copies this rank's rows of `whole`, a tensor of the parameter's sizes, to `values`, which has the rows' sizes. If
  /// the value of `whole` was deferred, it is computed.
  void copy_rows(const at::Tensor& whole, const at::Tensor& values) const;
  /// `gradient`, of the parameter's sizes, flat in the parameter's order in memory; a copy if it lies in another one.
  at::Tensor flat_in_memory_order(const at::Tensor& gradient) const;

  void show_rows() const;
  void show_whole() const;

  SlotPlace place;
  memory::PartStorage rows_storage, whole_storage;
  /// The templates that the parameter shows.
  at::Tensor rows_tensor, whole_tensor;
  std::string no_memory_error;  ///< what raw access says while the whole parameter has no memory
  /// The storage of the gradient that was handed out last; weak, so that zero_grad() frees it.
  c10::weak_intrusive_ptr<c10::StorageImpl> gradient_storage;
  /// The mark of what operators make of the rows; see Note [Results of rows].
  c10::intrusive_ptr<c10::BackendMeta> mark;

  // Its gradient in a backward, which uses `.grad` for whole gradients.
  at::Tensor parked;         // the rows' gradient meanwhile
  memory::HandedOn arrived;  // the whole gradient, which waits for its reduction
  memory::Charge charge;     // the bytes of that
  bool waits = false;        // without a gradient, too, if this rank had no data for it: ranks reduce alike
  GradientSource missing_from = GradientSource::kNone;
  bool was_read_unrecorded = false;  // by an operator in the scope, which autograd did not record

 private:
  std::string name_;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  c10::ScalarType rows_dtype_, whole_dtype_;
  c10::Device whole_device_;
  std::optional<Precision> precision_;
  std::optional<TensorCut> cut_;
  std::vector<int64_t> sizes_, strides_, row_sizes_, row_strides_;
  layout::RowRange rows_;
  int64_t offset_;
};

}  // namespace fsdp::runtime
