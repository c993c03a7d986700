#include <fsdp/parameters.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "api/rows.h"
#include "comm/core/call_tag.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/interceptor.h"
#include "runtime/param_group.h"
#include "runtime/row_operands.h"

namespace fsdp {
namespace {

std::optional<runtime::Part> part_of(const at::Tensor& tensor, const char* operation) {
  require(tensor.defined(), "fsdp::", operation, ": expected a parameter, found an undefined tensor");
  auto part = runtime::part_of(tensor);
  require(part || !runtime::is_marked(*tensor.unsafeGetTensorImpl()) || !runtime::another_copy_intercepts(),
          "fsdp::", operation,
          ": the parameter was sharded by another copy of fsdp in this process. Link fsdp into one shared library that "
          "the program and all its libraries use");
  return part;
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

ParameterPlacement placement_of(const at::Tensor& parameter) {
  const auto part = part_of(parameter, "placement_of");
  if (!part) return {};
  const auto& placement = part->group->placement();
  return {placement.shared_process_group(), placement.shared_shard(), placement.replicate()};
}

at::Tensor gather_rows(runtime::ParamGroup& group, size_t index, const at::Tensor& rows, const std::string& call,
                       const std::string& path) {
  const runtime::OwnOperators own_operators;
  const MutexLock lock(group.rank_state().mutex);
  auto& slot = group.slots()[index];
  require(!rows.is_meta(), group.where(call), "parameter '", slot.name(),
          "' is on the meta device and has no values. Give the parameter memory with fsdp::to_empty(model, device)");
  require(rows.sizes() == slot.rows_tensor.sizes(), group.where(call), "parameter '", slot.name(),
          "': expected the sizes of this rank's rows, ", slot.rows_tensor.sizes(), ", found ", rows.sizes(),
          ". Give each rank the gradient of its rows");
  auto strides = slot.rows_tensor.strides();
  auto dense = rows.strides() == strides ? rows : at::empty_strided(rows.sizes(), strides, rows.options()).copy_(rows);
  // A rank at an end of the parameter may have fewer rows than others, but all ranks send equally many elements.
  const auto& placement = group.placement();
  std::vector<int64_t> counts;
  for (int r = 0; r < placement.shard().world_size(); ++r) counts.push_back(group.params().rows_of(index, r).count);
  const int64_t length = std::ranges::max(counts) * slot.row_numel();
  // The input has no sharded key, so that operators of the communicator's threads are not intercepted.
  auto input = at::empty({0}, dense.options()).set_(dense.storage(), dense.storage_offset(), {slot.rows_numel()}, {1});
  if (slot.rows_numel() < length) input = at::cat({input, at::zeros({length - slot.rows_numel()}, input.options())});
  const auto gathered = at::empty({std::ssize(counts), length}, input.options());
  const auto named = call_tag(call, path, slot.name());
  auto tag = group.tag(named.subject);
  tag.shown = named.shown;
  placement.pass_on_failure_of(call, [&] {
    group.rank_state().wait(*placement.shard().communicator().all_gather(gathered.view(-1), input, std::move(tag)));
  });
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < counts.size(); ++r)
    parts.push_back(gathered[static_cast<int64_t>(r)].narrow(0, 0, counts[r] * slot.row_numel()));
  const auto flat = gathered.numel() == slot.numel() ? gathered.view(-1) : at::cat(parts);
  return flat.as_strided(slot.sizes(), slot.whole_tensor.strides());
}

at::Tensor gather_whole(const at::Tensor& parameter, const std::string& call, const std::string& path) {
  auto part = part_of(parameter, "full_tensor");
  if (!part) return parameter.detach().clone();
  const auto& slot = part->group->slots()[part->slot];
  // The whole tensor cannot be gathered from a part of the rows or from a reordered view.
  const auto& all = part->kind == runtime::PartKind::kWhole ? slot.whole_tensor : slot.rows_tensor;
  const bool lies_alike =
      part->kind == runtime::PartKind::kResult ? has_rows_first(parameter, slot) : parameter.strides() == all.strides();
  require(parameter.sizes() == all.sizes() && lies_alike, part->group->where("full_tensor"), "expected parameter '",
          slot.name(), "', its gradient or the result of element-wise operators on them, of sizes ", all.sizes(),
          ", found a view of sizes ", parameter.sizes(), ". Pass the whole tensor, and take the view of the result");
  const bool is_parameter = part->kind == runtime::PartKind::kRows || part->kind == runtime::PartKind::kWhole;
  const auto& rows = is_parameter ? slot.rows_tensor : parameter;
  return gather_rows(*part->group, part->slot, rows, call, path);
}

at::Tensor full_tensor(const at::Tensor& parameter) { return gather_whole(parameter, "full_tensor"); }

at::Tensor full_grad(const at::Tensor& parameter) {
  auto part = part_of(parameter, "full_grad");
  if (part) {
    const MutexLock lock(part->group->rank_state().mutex);
    part->group->require_no_waiting_gradient(part->slot, "full_grad");
  }
  if (!parameter.grad().defined()) return {};
  if (!part) return parameter.grad().detach().clone();
  return gather_rows(*part->group, part->slot, parameter.grad(), "full_grad");
}

}  // namespace fsdp
