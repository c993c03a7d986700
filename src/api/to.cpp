#include <fsdp/to.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "api/group_view.h"
#include "api/plan.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using memory::Form;
using runtime::FormChange;
using runtime::ParamGroup;
using runtime::ShardedParams;

// Gives a group's parameters another dtype or device. Collective.
void change_form(ParamGroup& group, const FormChange& change, const char* operation) {
  auto params = group.lay_out(group.placement(), group.policy, change);
  runtime::ShardedParams* const one[]{params.get()};
  allocate_rows(one, operation);
  // The value of a parameter on the meta device stays undefined.
  std::vector<at::Tensor> wholes(group.slots().size());
  for (const size_t i : c10::irange(wholes.size())) {
    const auto& slot = group.slots()[i];
    if (!slot.rows_tensor.is_meta()) wholes[slot.place.given] = gather_rows(group, i, slot.rows_tensor, operation);
  }
  params->take_rows(wholes);
  group.reshard();
  group.move_to(std::move(params), group.policy);
  // Autograd's old gradient accumulators expect gradients of the old dtype and device.
  for (const auto& slot : group.slots())
    torch::autograd::impl::get_autograd_meta(slot.tensor())->grad_accumulator_.reset();
}

// Changes the dtype and device of each parameter and buffer under the model to what `change` returns.
void change_all(const Group& model, const FormChange& change, const char* operation, const std::string& what) {
  const auto& [groups, tree] = GroupView::of(model);
  const auto& own = *groups.front();
  const MutexLock lock(own.rank_state().mutex);
  for (const auto& group : groups) {
    require_between_steps(*group, operation);
    for (const auto& slot : group->slots()) {
      const bool is_on_cpu = change(slot.form()).device.is_cpu();
      const bool is_offloaded = group->policy.row_memory != runtime::RowMemory::kBesideWhole;
      require(is_on_cpu ? !is_offloaded : group->policy.disk_folder.empty(), group->where(operation), "'",
              group->name(), "' was sharded with FullyShardOptions::", is_on_cpu ? "offload_policy" : "disk_policy",
              ", which only works for models ", is_on_cpu ? "on an accelerator" : "on the CPU",
              ". Leave the model there, or move it before fully_shard");
    }
  }
  own.rank_state().wait(*own.placement().process_group().communicator().barrier(
      {str_cat(operation, " of ", own.name(), " to ", what), {}}));
  for (const auto& group : groups)
    if (std::ranges::any_of(group->slots(), [&](const auto& slot) { return change(slot.form()) != slot.form(); }))
      change_form(*group, change, operation);
  for (const auto& [name, tensor] : subtree_tensors(*tree)) {
    const auto form = change(memory::form_of(tensor));
    if (runtime::registry().find(tensor) || form == memory::form_of(tensor)) continue;
    const at::NoGradGuard no_grad;
    const auto options = tensor.options().dtype(form.dtype).device(form.device).requires_grad(false);
    const auto changed = tensor.is_meta() ? at::zeros(tensor.sizes(), options) : tensor.detach().to(options);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(changed.getIntrusivePtr());
  }
  own.rank_state().reads.forget();
}

// Returns the device's type without its index, which differs between ranks.
std::string name_of(c10::Device device) { return c10::DeviceTypeName(device.type(), /*lower_case=*/true); }

void require_values_alone(const Group& model, const char* operation) {
  require_values(param_groups(model), operation);
  for (const auto& group : param_groups(model))
    for (const auto& slot : group->slots())
      require(!slot.tensor().defined() || !slot.tensor().grad().defined(), group->where(operation), "parameter '",
              slot.name(), "' has a gradient. Drop all gradients first: model->zero_grad()");
}

}  // namespace

void to_empty(const Group& model, c10::Device device) {
  require_device(device, param_groups(model).front()->where("to_empty"));
  change_all(
      model, [&](const Form& form) { return form.device.is_meta() ? Form{form.dtype, with_index(device)} : form; },
      "to_empty", name_of(device));
}

void to(const Group& model, c10::Device device) {
  require_values_alone(model, "to");
  require_device(device, param_groups(model).front()->where("to"));
  change_all(model, [&](const Form& form) { return Form{form.dtype, with_index(device)}; }, "to", name_of(device));
}

void to(const Group& model, c10::ScalarType dtype) {
  require(c10::isFloatingType(dtype), param_groups(model).front()->where("to"),
          "expected a floating point type, found ", dtype);
  require_values_alone(model, "to");
  change_all(
      model, [&](const Form& form) { return c10::isFloatingType(form.dtype) ? Form{dtype, form.device} : form; }, "to",
      c10::toString(dtype));
}

}  // namespace fsdp
