#include <ATen/ops/empty_strided.h>
#include <c10/util/ScopeExit.h>
#include <fsdp/deferred_init.h>
#include <fsdp/initialize.h>

#include <algorithm>
#include <unordered_set>

#include "api/group_view.h"
#include "api/plan.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/deferred_value.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using runtime::DeferredRecording;
using runtime::DeferredValue;

// A sharded parameter that shows its whole sizes on the meta device while the user's function initialises it.
struct Shown {
  std::shared_ptr<runtime::ParamGroup> group;
  size_t index = 0;  // of the parameter's slot
  std::shared_ptr<DeferredValue> before;
  at::Tensor on_meta;

  runtime::ParamSlot& slot() const { return group->slots()[index]; }
  bool is_written() const { return runtime::deferred_value_of(on_meta) != before; }
};

Shown show(const std::shared_ptr<runtime::ParamGroup>& group, size_t index) {
  auto& slot = group->slots()[index];
  const auto form = memory::form_of(slot.rows_tensor);
  auto on_meta = at::empty_strided(slot.sizes(), slot.whole_tensor.strides(), at::device(at::kMeta).dtype(form.dtype));
  auto before = std::make_shared<DeferredValue>(
      DeferredValue{.device = form.device, .bytes = on_meta.storage().nbytes(), .is_spread = true});
  runtime::defer(on_meta, before);
  slot.tensor().unsafeGetTensorImpl()->shallow_copy_from(on_meta.getIntrusivePtr());
  return {group, index, std::move(before), std::move(on_meta)};
}

// Gathers the parameter's old values. Collective.
void gather_before(Shown& shown) {
  const auto whole = gather_rows(*shown.group, shown.index, shown.slot().rows_tensor, "initialize");
  shown.before->there = runtime::bytes_of_storage(whole);
}

// Returns those old values of parameters from which new values of other parameters are computed.
std::unordered_set<const DeferredValue*> read_by_others(const std::vector<Shown>& parameters) {
  std::unordered_set<const DeferredValue*> read;
  for (const auto& shown : parameters) {
    std::unordered_set<const DeferredValue*> seen;
    for (std::vector<runtime::DeferredValuePtr> open{runtime::deferred_value_of(shown.on_meta)}; !open.empty();) {
      const auto next = open.back();
      open.pop_back();
      if (!next || !seen.insert(next.get()).second) continue;
      if (next->is_spread && next != shown.before) read.insert(next.get());
      if (next->call)
        for (const auto& operand : next->call->operands) open.push_back(operand.value);
    }
  }
  return read;
}

// Computes the new values of this rank's rows. Collective if they depend on the parameter's old values.
void take_rows(Shown& shown) {
  constexpr int kOwn = 1;
  if (shown.before.use_count() > kOwn && !shown.before->there.defined()) gather_before(shown);
  if (shown.slot().rows_numel() == 0) return;
  const runtime::OwnOperators own_operators;
  shown.slot().copy_rows(shown.on_meta, shown.slot().rows_tensor);
}

// Throws Mismatch unless every rank has deferred the same calls. Collective.
void agree_on(const std::vector<Shown>& parameters, runtime::ParamGroup& own) {
  uint64_t sum = 0;
  for (const auto& shown : parameters) sum = sum * 31 + static_cast<uint64_t>(fingerprint_of(shown.on_meta));
  const auto subject =
      str_cat("initialize of ", own.name(), ": ", std::ranges::count_if(parameters, &Shown::is_written),
              " parameters; operators and random numbers ", sum);
  own.rank_state().wait(*own.placement().process_group().communicator().barrier({subject, {}}));
}

}  // namespace

void put_off(const ModuleNode& tree, const std::function<void(torch::nn::Module&)>& init) {
  std::vector<const ModuleNode*> nodes;
  visit_nodes(tree, [&](const ModuleNode& node) { nodes.push_back(&node); });
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    const auto* node = *it;
    bool lacks_values = false;
    for (const auto* list : {&node->parameters, &node->buffers})
      for (const auto& [name, tensor] : *list) {
        if (!tensor.is_meta() || runtime::deferred_value_of(tensor) || runtime::registry().find(tensor)) continue;
        runtime::defer(tensor, std::make_shared<DeferredValue>(DeferredValue{at::kCPU, tensor.storage().nbytes()}));
        lacks_values = true;
      }
    if (!lacks_values) continue;
    const DeferredRecording recording(DeferredRecording::Kind::kPutOff);
    init(*node->module);
  }
}

// The tensors stay the same objects.
void compute_deferred(const std::vector<runtime::NamedParameter>& tensors) {
  for (const auto& named : tensors) require_put_off(named, "[fsdp] deferred_init: ");
  for (const auto& [name, tensor] : tensors)
    if (runtime::deferred_value_of(tensor))
      tensor.unsafeGetTensorImpl()->shallow_copy_from(runtime::compute(tensor).getIntrusivePtr());
}

DeferredStretch::DeferredStretch(bool forgets)
    : recording_(std::make_shared<DeferredRecording>(forgets ? DeferredRecording::Kind::kForget
                                                             : DeferredRecording::Kind::kPutOff)) {}

void materialize(torch::nn::Module& module) { compute_deferred(subtree_tensors(*module_tree(module))); }

void initialize(const Group& model, const std::function<void()>& init) {
  const auto& groups = param_groups(model);
  auto& own = *groups.front();
  const MutexLock lock(own.rank_state().mutex);
  require_values(groups, "initialize");
  for (const auto& group : groups) require_between_steps(*group, "initialize");
  std::vector<Shown> parameters;
  {
    const auto in_the_end = c10::make_scope_exit([&] {
      for (const auto& shown : parameters) shown.slot().show_rows();
    });
    for (const auto& group : groups)
      for (size_t i = 0; i < group->slots().size(); ++i)
        if (group->slots()[i].tensor().defined()) parameters.push_back(show(group, i));
    const DeferredRecording recording(DeferredRecording::Kind::kPutOff);
    {
      const RankLock::ScopedRelease users_code(own.rank_state().mutex);
      init();
    }
    // Rows are computed from the storage that `show` made.
    for (const auto& shown : parameters)
      require(shown.slot().tensor().storage().is_alias_of(shown.on_meta.storage()), own.where("initialize"),
              "parameter '", shown.slot().name(), "' was given the memory of a different tensor by set_data. ",
              "Write the values in place instead: parameter.copy_(values) under torch::NoGradGuard");
  }
  agree_on(parameters, own);
  const auto read = read_by_others(parameters);
  for (auto& shown : parameters)
    if (read.contains(shown.before.get())) gather_before(shown);
  std::erase_if(parameters, [](const Shown& shown) { return !shown.is_written(); });
  for (auto& shown : parameters) {
    shown.group->prepare_write(runtime::WriteKind::kEveryRank, shown.index);
    take_rows(shown);
    shown = {};
  }
}

}  // namespace fsdp
