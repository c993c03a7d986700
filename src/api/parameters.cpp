#include <fsdp/parameters.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/interceptor.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

std::optional<runtime::Part> part_of(const at::Tensor& tensor, const char* operation) {
  require(tensor.defined(), "fsdp::", operation, ": expected a parameter, found an undefined tensor");
  auto part = runtime::registry().find(tensor);
  require(part || !runtime::is_marked(*tensor.unsafeGetTensorImpl()) || !runtime::another_copy_intercepts(),
          "fsdp::", operation,
          ": the parameter was sharded by another copy of fsdp in this process. Link fsdp into one shared "
          "library that all use");
  return part;
}

// A part of the rows, or rows seen in another order, says nothing about the whole.
void require_all_rows(const runtime::Part& part, const at::Tensor& tensor, const char* operation) {
  const auto& slot = part.group->slots()[part.slot];
  const auto& all = part.kind == runtime::PartKind::kWhole ? slot.whole_tensor : slot.rows_tensor;
  require(tensor.sizes() == all.sizes() && tensor.strides() == all.strides(), part.group->where(operation),
          "expected parameter '", slot.name(), "' or its gradient as it is, of sizes ", all.sizes(),
          ", found a view of sizes ", tensor.sizes(), ". Take the view of the result");
}

// Gathers tensors of the rows' sizes into one of the slot's sizes and strides.
at::Tensor gather_rows(runtime::Part& part, const at::Tensor& rows, const char* operation) {
  const runtime::OwnOperators own_operators;
  auto& group = *part.group;
  std::lock_guard lock(group.rank_state().mutex);
  auto& slot = group.slots()[part.slot];
  require(rows.sizes() == slot.rows_tensor.sizes(), group.where(operation), "parameter '", slot.name(),
          "': expected the sizes of this rank's rows, ", slot.rows_tensor.sizes(), ", found ", rows.sizes(),
          ". Give each rank the gradient of its rows");
  auto strides = slot.rows_tensor.strides();
  auto dense = rows.strides() == strides ? rows : at::empty_strided(rows.sizes(), strides, rows.options()).copy_(rows);
  std::vector<int64_t> offsets{0};
  for (int r = 0; r < group.placement().shard().world_size(); ++r)
    offsets.push_back(offsets.back() + group.params().rows_of(part.slot, r).count * slot.row_numel());
  auto flat = at::empty({slot.numel()}, dense.options());
  // Without the mark: the communicator's threads must not come back to the runtime.
  auto input = at::empty({0}, dense.options()).set_(dense.storage(), dense.storage_offset(), {slot.rows_numel()}, {1});
  auto tag = group.tag(std::string(operation) + " " + slot.name());
  group.rank_state().wait(*group.placement().shard().communicator().all_gather(flat, input, offsets, std::move(tag)));
  return flat.as_strided(slot.sizes(), slot.whole_tensor.strides());
}

}  // namespace

std::vector<int64_t> global_sizes(const at::Tensor& parameter) {
  auto part = part_of(parameter, "global_sizes");
  return part ? part->group->slots()[part->slot].sizes().vec() : parameter.sizes().vec();
}

LocalRowRange local_rows(const at::Tensor& parameter) {
  auto part = part_of(parameter, "local_rows");
  if (!part) return {0, parameter.dim() == 0 ? 1 : parameter.size(0)};
  auto rows = part->group->slots()[part->slot].rows();
  return {rows.first, rows.count};
}

at::Tensor full_tensor(const at::Tensor& parameter) {
  auto part = part_of(parameter, "full_tensor");
  if (!part) return parameter.detach().clone();
  require_all_rows(*part, parameter, "full_tensor");
  if (part->kind == runtime::PartKind::kGradient) return gather_rows(*part, parameter, "full_grad");
  return gather_rows(*part, part->group->slots()[part->slot].rows_tensor, "full_tensor");
}

at::Tensor full_grad(const at::Tensor& parameter) {
  auto part = part_of(parameter, "full_grad");
  if (!parameter.grad().defined()) return {};
  if (!part) return parameter.grad().detach().clone();
  return gather_rows(*part, parameter.grad(), "full_grad");
}

}  // namespace fsdp
