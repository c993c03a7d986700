#include "runtime/param_slot.h"

#include <ATen/ops/empty_strided.h>

#include <utility>

#include "memory/block.h"
#include "runtime/compat.h"
#include "runtime/deferred_value.h"

namespace fsdp::runtime {
namespace {

at::Tensor marked(at::Tensor tensor) {
  add_key(*tensor.unsafeGetTensorImpl(), kShardedKey);
  return tensor;
}

// Returns `first`, followed by the sizes or strides of the dims behind the joined ones.
std::vector<int64_t> with_joined_dims(int64_t first, c10::IntArrayRef of_dims, size_t joined_dims) {
  std::vector<int64_t> joined{first};
  joined.insert(joined.end(), of_dims.begin() + static_cast<int64_t>(joined_dims), of_dims.end());
  return joined;
}

}  // namespace

ParamSlot::ParamSlot(const GroupMember& parameter, const SlotPlace& where, const layout::PlacedItem& placed,
                     layout::RowRange rows, memory::Form rows_form, memory::Form whole_form)
    : place(where),
      rows_storage(rows_form.device, rows_form.bytes(rows.count * placed.row_numel)),
      whole_storage(whole_form.device, whole_form.bytes(parameter.tensor.numel())),
      gradient_storage(c10::intrusive_ptr<c10::StorageImpl>()),
      name_(parameter.name),
      tensor_(parameter.tensor.getIntrusivePtr()),
      rows_dtype_(rows_form.dtype),
      whole_device_(whole_form.device),
      precision_(parameter.precision),
      cut_(parameter.cut),
      sizes_(parameter.tensor.sizes().vec()),
      strides_(parameter.tensor.strides().vec()),
      row_sizes_(with_joined_dims(placed.rows, sizes_, placed.joined_dims)),
      row_strides_(with_joined_dims(placed.joined_dims == 0 ? 1 : strides_[placed.joined_dims - 1], strides_,
                                    placed.joined_dims)),
      rows_(rows),
      offset_(placed.offset) {
  rows_tensor = rows_on(rows_storage);
  whole_tensor = marked(whole_storage.tensor(sizes_, strides_, whole_form.dtype));
}

at::Tensor ParamSlot::tensor() const {
  auto impl = tensor_.lock();
  return impl ? at::Tensor(std::move(impl)) : at::Tensor();
}

bool ParamSlot::requires_grad() const {
  auto parameter = tensor();
  return parameter.defined() && parameter.requires_grad();
}

at::Tensor ParamSlot::rows_on(const memory::PartStorage& storage) const {
  auto sizes = row_sizes_;
  sizes[0] = rows_.count;
  return marked(storage.tensor(sizes, row_strides_, rows_dtype_));
}

void ParamSlot::copy_rows(const at::Tensor& whole, const at::Tensor& values) const {
  if (values.numel() == 0) return;
  const bool is_deferred = deferred_value_of(whole) != nullptr;
  values.copy_((is_deferred ? compute(whole) : whole).reshape(row_sizes_).narrow(0, rows_.first, rows_.count));
  // Otherwise malloc would keep the memory of large computed tensors.
  constexpr size_t kLarge = size_t{1} << 20;
  if (is_deferred && whole.nbytes() >= kLarge) memory::return_free_pages();
}

at::Tensor ParamSlot::flat_in_memory_order(const at::Tensor& gradient) const {
  if (gradient.dim() == 1 && gradient.is_contiguous()) return gradient;
  if (gradient.strides() == strides_) return gradient.as_strided({numel()}, {1});
  auto copy = at::empty_strided(sizes_, strides_, gradient.options());
  return copy.copy_(gradient).as_strided({numel()}, {1});
}

// shallow_copy_from changes storage, sizes and dtype. The parameter keeps its autograd state, its version counter and
// its gradient accumulator.
void ParamSlot::show_rows() const {
  if (auto impl = tensor_.lock()) impl->shallow_copy_from(rows_tensor.getIntrusivePtr());
}

void ParamSlot::show_whole() const {
  if (auto impl = tensor_.lock()) impl->shallow_copy_from(whole_tensor.getIntrusivePtr());
}

}  // namespace fsdp::runtime
