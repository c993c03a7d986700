#include "api/gather_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/core/call_tag.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp {

at::Tensor gather_rows(runtime::ParamGroup& group, size_t index, const at::Tensor& rows, const std::string& call,
                       const std::string& path) {
  const runtime::OwnOperators own_operators;
  std::lock_guard lock(group.rank_state().mutex);
  auto& slot = group.slots()[index];
  require(!rows.is_meta(), group.where(call), "parameter '", slot.name(),
          "' is on the meta device and has no values. Give it memory with fsdp::to_empty(model, device)");
  require(rows.sizes() == slot.rows_tensor.sizes(), group.where(call), "parameter '", slot.name(),
          "': expected the sizes of this rank's rows, ", slot.rows_tensor.sizes(), ", found ", rows.sizes(),
          ". Give each rank the gradient of its rows");
  auto strides = slot.rows_tensor.strides();
  auto dense = rows.strides() == strides ? rows : at::empty_strided(rows.sizes(), strides, rows.options()).copy_(rows);
  // A rank at an end of the parameter may have fewer rows than others; all send as many.
  const auto& placement = group.placement();
  std::vector<int64_t> counts;
  for (int r = 0; r < placement.shard().world_size(); ++r) counts.push_back(group.params().rows_of(index, r).count);
  const int64_t length = std::ranges::max(counts) * slot.row_numel();
  // Without the mark: the communicator's threads must not come back to the runtime.
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

}  // namespace fsdp
