#include <fsdp/parameters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

std::optional<runtime::Part> part_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return std::nullopt;
  return runtime::registry().find(tensor.storage().unsafeGetStorageImpl());
}

// Gathers rows that lie densely on each rank into a tensor of the slot's sizes and strides.
at::Tensor gather_rows(runtime::Part& part, const at::Tensor& rows, const char* operation) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(runtime::kShardedKey);
  auto& group = *part.group;
  std::lock_guard lock(group.rank_state().mutex);
  auto& slot = group.slots()[part.slot];
  auto place = group.place(part.slot);
  const auto& layout = group.flats()[place.flat].layout();
  std::vector<int64_t> offsets{0};
  for (int r = 0; r < layout.world_size(); ++r)
    offsets.push_back(offsets.back() + layout.rows_of(place.item, r).count * slot.row_numel());
  auto flat = at::empty({slot.numel()}, rows.options());
  // Without the mark: the communicator's threads must not come back to the runtime.
  auto input = at::empty({0}, rows.options()).set_(rows.storage(), rows.storage_offset(), {slot.rows_numel()}, {1});
  group.process_group()
      .communicator()
      .all_gather(flat, input, offsets, {std::string(operation) + " " + slot.name(), {}})
      ->wait();
  return flat.as_strided(slot.sizes(), slot.whole_tensor.strides());
}

}  // namespace

std::vector<int64_t> global_sizes(const at::Tensor& parameter) {
  auto part = part_of(parameter);
  return part ? part->group->slots()[part->slot].sizes().vec() : parameter.sizes().vec();
}

LocalRowRange local_rows(const at::Tensor& parameter) {
  auto part = part_of(parameter);
  if (!part) return {0, parameter.dim() == 0 ? 1 : parameter.size(0)};
  auto rows = part->group->slots()[part->slot].rows();
  return {rows.first, rows.count};
}

at::Tensor full_tensor(const at::Tensor& parameter) {
  auto part = part_of(parameter);
  if (!part) return parameter.detach().clone();
  return gather_rows(*part, part->group->slots()[part->slot].rows_tensor, "full_tensor");
}

at::Tensor full_grad(const at::Tensor& parameter) {
  auto part = part_of(parameter);
  if (!parameter.grad().defined()) return {};
  if (!part) return parameter.grad().detach().clone();
  return gather_rows(*part, parameter.grad(), "full_grad");
}

}  // namespace fsdp
