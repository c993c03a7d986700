#include "api/gather_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

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
  std::vector<int64_t> offsets{0};
  for (int r = 0; r < group.placement().shard().world_size(); ++r)
    offsets.push_back(offsets.back() + group.params().rows_of(index, r).count * slot.row_numel());
  auto flat = at::empty({slot.numel()}, dense.options());
  // Without the mark: the communicator's threads must not come back to the runtime.
  auto input = at::empty({0}, dense.options()).set_(dense.storage(), dense.storage_offset(), {slot.rows_numel()}, {1});
  const auto named = call_tag(call, path, slot.name());
  auto tag = group.tag(named.subject);
  tag.shown = named.shown;
  const auto& placement = group.placement();
  placement.pass_on_failure_of(call, [&] {
    group.rank_state().wait(*placement.shard().communicator().all_gather(flat, input, offsets, std::move(tag)));
  });
  return flat.as_strided(slot.sizes(), slot.whole_tensor.strides());
}

}  // namespace fsdp
