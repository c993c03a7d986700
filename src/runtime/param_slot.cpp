#include "runtime/param_slot.h"

#include <ATen/ops/empty_strided.h>

#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

at::Tensor marked(at::Tensor tensor) {
  mark_sharded(*tensor.unsafeGetTensorImpl());
  return tensor;
}

size_t rows_bytes(const at::Tensor& parameter, layout::RowRange rows) {
  int64_t all_rows = parameter.dim() == 0 ? 1 : parameter.size(0);
  return all_rows == 0 ? 0 : parameter.nbytes() / static_cast<size_t>(all_rows) * static_cast<size_t>(rows.count);
}

}  // namespace

ParamSlot::ParamSlot(const NamedParameter& parameter, layout::RowRange rows)
    : rows_storage(parameter.tensor.device(), rows_bytes(parameter.tensor, rows)),
      whole_storage(parameter.tensor.device(), parameter.tensor.nbytes()),
      gradient_storage(c10::intrusive_ptr<c10::StorageImpl>()),
      name_(parameter.name),
      tensor_(parameter.tensor.getIntrusivePtr()),
      dtype_(parameter.tensor.scalar_type()),
      sizes_(parameter.tensor.sizes().vec()),
      strides_(parameter.tensor.strides().vec()),
      rows_(rows) {
  rows_tensor = rows_on(rows_storage);
  whole_tensor = marked(whole_storage.tensor(sizes_, strides_, dtype_));
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
  // A scalar is one row: its owner sees one element, the other ranks none.
  if (sizes_.empty()) return marked(storage.tensor({rows_.count}, {1}, dtype_));
  auto sizes = sizes_;
  sizes[0] = rows_.count;
  return marked(storage.tensor(sizes, strides_, dtype_));
}

at::Tensor ParamSlot::rows_of(const at::Tensor& whole) const {
  auto at_least_one_dim = sizes_.empty() ? whole.reshape({1}) : whole;
  return at_least_one_dim.narrow(0, rows_.first, rows_.count);
}

at::Tensor ParamSlot::flat_in_memory_order(const at::Tensor& gradient) const {
  if (gradient.strides() == strides_) return gradient.as_strided({numel()}, {1});
  auto copy = at::empty_strided(sizes_, strides_, gradient.options());
  return copy.copy_(gradient).as_strided({numel()}, {1});
}

// shallow_copy_from keeps the autograd state, the version counter and the gradient accumulator of the parameter.
void ParamSlot::show_rows() const {
  if (auto impl = tensor_.lock()) impl->shallow_copy_from(rows_tensor.getIntrusivePtr());
}

void ParamSlot::show_whole() const {
  if (auto impl = tensor_.lock()) impl->shallow_copy_from(whole_tensor.getIntrusivePtr());
}

}  // namespace fsdp::runtime
