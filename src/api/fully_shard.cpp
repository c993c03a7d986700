#include <fsdp/fully_shard.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "api/group_view.h"
#include "api/placement_choice.h"
#include "api/plan.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "comm/group/attachment.h"
#include "comm/posix/file.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/interceptor.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using runtime::NamedParameter;
using runtime::ParamGroup;

std::vector<NamedParameter> free_parameters(const ModuleNode& node, const std::vector<at::Tensor>& ignored) {
  std::unordered_set<const at::TensorImpl*> left_out;
  for (const auto& tensor : ignored) left_out.insert(tensor.unsafeGetTensorImpl());
  auto parameters = subtree_parameters(node);
  std::erase_if(parameters, [&](const NamedParameter& parameter) {
    return runtime::registry().find(parameter.tensor) || left_out.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  return parameters;
}

// Updates the groups under a node after a module around them got the group `outermost`. Each gets its parent group, the
// tensor axis of `outermost`, and names for itself and its parameters relative to that module. If `outermost` has no
// parameters of its own, the groups keep it alive. `named` has the groups and parameters that have their new names.
void adopt_descendants(const ModuleNode& node, ParamGroup& outermost, ParamGroup* around,
                       std::unordered_set<const void*>& named) {
  if (const auto group = group_at(node); group && group.get() != around) {
    auto& rank = group->rank_state();
    const MutexLock lock(rank.mutex);
    rank.tree.add_parent(group->id(), around->id());
    if (named.insert(group.get()).second) group->rename(node.path);
    around = group.get();
  }
  for (const auto& [name, tensor] : node.parameters) {
    auto part = runtime::registry().find(tensor);
    if (!part || !named.insert(tensor.unsafeGetTensorImpl()).second) continue;
    part->group->rename_slot(part->slot, name);
    if (const auto& axis = outermost.placement().tensor_axis) part->group->params().placement.tensor_axis = axis;
    if (outermost.slots().empty()) part->group->keep(outermost.shared_from_this());
  }
  for (const auto& child : node.children) adopt_descendants(*child, outermost, around, named);
}

// Returns the whole values from which every rank takes its rows. Collective if they are rank 0's.
std::vector<at::Tensor> values_of(const PlannedGroup& planned, const ProcessGroup& process_group,
                                  const FullyShardOptions& options) {
  if (options.sync_module_states)
    return values_of_rank(0, process_group, planned.parameters, "fully_shard, sync_module_states of " + planned.name);
  std::vector<at::Tensor> own;
  for (const auto& parameter : planned.parameters) own.push_back(parameter.tensor);
  return own;
}

runtime::GroupPolicy policy_of(const FullyShardOptions& options) {
  runtime::GroupPolicy policy;
  policy.told_to_broadcast = options.broadcast_buffers;
  policy.bucket_cap_bytes = options.bucket_cap_bytes;
  policy.max_prefetched_bytes = options.max_prefetched_bytes;
  if (const auto& offload = options.offload_policy)
    policy.row_memory = offload->pin_memory ? runtime::RowMemory::kPinned : runtime::RowMemory::kHost;
  if (options.disk_policy) policy.disk_folder = absolute_path(options.disk_policy->folder);
  if (const auto& precision = options.mp_policy) {
    if (precision->cast_forward_inputs) policy.input_dtype = precision->param_dtype;
    policy.output_dtype = precision->output_dtype;
  }
  apply_strategy(options.strategy, policy);
  const auto& reshard = options.reshard_after_forward;
  if (reshard && options.strategy == Strategy::kFullShard) policy.reshard_after_forward = reshard->after_forward();
  return policy;
}

// Returns the neighbours of Reshard::within; null if there are none. The first call for these ranks is collective.
std::shared_ptr<ProcessGroup> choose_neighbours(const runtime::Placement& placement, const FullyShardOptions& options) {
  const auto& shard = placement.shard();
  const int count = options.reshard_after_forward ? options.reshard_after_forward->ranks().value_or(1) : 1;
  if (count == 1 || count == shard.world_size()) return nullptr;
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < shard.world_size(); ++rank) {
    if (rank % count == 0) groups.emplace_back();
    groups.back().push_back(shard.global_ranks()[static_cast<size_t>(rank)]);
  }
  const auto& own = groups[static_cast<size_t>(shard.rank() / count)];
  auto& made = Attachment::of<runtime::RankState>(placement.process_group())->neighbours[own];
  if (!made) made = shard.split(groups, "within");
  return made;
}

// Makes the groups and fills their rows, but does not change the parameters. Collective if ranks share memory or take
// rank 0's values.
std::vector<std::shared_ptr<ParamGroup>> create_groups(const std::vector<PlannedGroup>& plan,
                                                       const runtime::Placement& placement,
                                                       const FullyShardOptions& options) {
  std::vector<std::shared_ptr<ParamGroup>> groups;
  const auto rank_state = Attachment::of<runtime::RankState>(placement.process_group());
  // The pointer is set only if it changes, because other threads read it once there are groups.
  if (auto timeline = Attachment::ranks_of(placement.process_group()).timeline;
      timeline && timeline != rank_state->timeline)
    rank_state->timeline = std::move(timeline);
  for (const auto& planned : plan)
    groups.push_back(std::make_shared<ParamGroup>(
        runtime::GroupSpec{planned.name, planned.parameters, placement, rank_state, policy_of(options)}));
  std::vector<runtime::ShardedParams*> params;
  for (const auto& group : groups) params.push_back(&group->params());
  allocate_rows(params, "fully_shard");
  for (size_t i = 0; i < plan.size(); ++i)
    groups[i]->params().take_rows(values_of(plan[i], placement.process_group(), options));
  return groups;
}

// Returns each buffer together with its new values, which are on the buffer's new device. With sync_module_states they
// are rank 0's, `found` is what `agree` returned, and the call is collective.
std::vector<std::pair<at::Tensor, at::Tensor>> changed_buffers(const ModuleNode& tree,
                                                               std::span<const c10::Device> found,
                                                               const ProcessGroup& process_group,
                                                               const FullyShardOptions& options) {
  const auto of_ranks = process_group.device();
  const auto buffers = subtree_buffers(tree);
  std::vector<at::Tensor> received;
  if (options.sync_module_states) {
    std::vector<runtime::GroupMember> wanted;
    for (const auto device : found.last(buffers.size())) {
      const auto& buffer = buffers[wanted.size()];
      const memory::Form form{buffer.tensor.scalar_type(), choose_device(options, device, of_ranks)};
      wanted.push_back({buffer, {}, form});
    }
    received = values_of_rank(0, process_group, wanted, "fully_shard, sync_module_states of buffers");
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> changed;
  for (const auto& [name, buffer] : buffers) {
    auto values = received.empty() ? buffer : received[changed.size()];
    const bool is_parameter = runtime::registry().find(buffer).has_value();
    const auto device = is_parameter       ? buffer.device()
                        : buffer.is_meta() ? values.device()
                                           : choose_device(options, buffer.device(), of_ranks);
    if (device != buffer.device() || device != values.device())
      values = at::empty_strided(buffer.sizes(), buffer.strides(), buffer.options().device(device)).copy_(values);
    changed.emplace_back(buffer, std::move(values));
  }
  return changed;
}

// Returns the module's weak pointer to itself. If no shared_ptr owns the module, the function makes one without a
// deleter and drops it at once: the module's weak pointer then has an identity, and nothing else changes.
std::weak_ptr<torch::nn::Module> owner_of(torch::nn::Module* module) {
  if (module == nullptr) return {};
  if (module->weak_from_this().expired()) std::shared_ptr<torch::nn::Module>(module, [](auto*) {}).reset();
  return module->weak_from_this();
}

void install_group(const ModuleNode& node, const std::shared_ptr<ParamGroup>& group) {
  group->params().install(group);
  runtime::hook_parameters(group);
  for (const auto* given : given_modules(node)) {
    group->watched.push_back(owner_of(given->module));
    runtime::registry().add_module(given->identity, group->watched.back(), group);
  }
  visit_nodes(node, [&](const ModuleNode& inside) { group->modules.insert(inside.identity); });
}

}  // namespace

Group shard_over(runtime::Placement placement, std::unique_ptr<ModuleNode> tree, const FullyShardOptions& options) {
  const auto where = placement.where("fully_shard");
  require(!c10::impl::tls_local_dispatch_key_set().included_.has(runtime::kDeferredKey), where,
          "called inside deferred_init or meta_init. Shard the module that deferred_init or meta_init returns");
  check_call(options, *tree, placement, where);
  if (options.param_init_fn) put_off(*tree, options.param_init_fn);
  const auto parameters = free_parameters(*tree, options.ignored_params);
  check_parameters(parameters, *tree, where);
  auto plan = plan_groups(*tree, parameters, options);
  placement.tensor_axis = check_cuts(*tree, placement, where);
  const auto of_ranks = placement.process_group().device();
  if (options.mp_policy) set_precision(*options.mp_policy, *tree, plan);
  auto buffers = subtree_buffers(*tree);
  if (!options.sync_module_states || placement.process_group().rank() == 0) compute_deferred(buffers);
  for (const auto& ignored : options.ignored_params) compute_deferred({{"", ignored}});  // not taken from rank 0
  if (!options.sync_module_states && !policy_of(options).broadcasts_buffers) buffers.clear();
  if (!options.sync_module_states)  // buffers on the meta device need values only before the first forward
    std::erase_if(buffers, [](const NamedParameter& buffer) { return buffer.tensor.is_meta(); });
  check_buffers(buffers, where);
  runtime::install_interceptor();
  const auto devices = agree(placement, plan, buffers, options);
  set_devices(options, of_ranks, plan, devices);
  placement.within = choose_neighbours(placement, options);
  const auto groups = create_groups(plan, placement, options);
  const at::NoGradGuard no_grad;
  const auto changed = changed_buffers(*tree, devices, placement.process_group(), options);
  // If a statement above throws, the model is as it was before. The statements below neither communicate nor throw.
  for (const auto& [buffer, values] : changed)
    if (values.device() != buffer.device())
      buffer.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
    else if (!values.is_same(buffer))
      buffer.copy_(values);
  for (const auto& parameter : options.ignored_params) runtime::registry().ignore(parameter);
  for (size_t i = 0; i < plan.size(); ++i) install_group(*plan[i].node, groups[i]);
  std::unordered_set<const void*> named;
  adopt_descendants(*tree, *groups.back(), groups.back().get(), named);
  return make_group(groups.back(), std::move(tree));
}

Group fully_shard(torch::nn::Module& module, const FullyShardOptions& options) {
  return shard_over(choose_placement(options), module_tree(module), options);
}

Group fully_shard(const std::vector<torch::nn::Module*>& modules, const FullyShardOptions& options) {
  require(!modules.empty(), "fsdp::fully_shard: expected at least one module, found an empty list");
  for (const auto* module : modules)
    require(module != nullptr,
            "fsdp::fully_shard: expected modules, found a null pointer in the list. Construct every module first");
  return shard_over(choose_placement(options), module_tree(modules), options);
}

Sharded<torch::jit::Module> fully_shard(torch::jit::Module& module, const FullyShardOptions& options) {
  return {module, shard_over(choose_placement(options), module_tree(module), options)};
}

Group group_of(const torch::nn::Module& module) {
  auto tree = module_tree(const_cast<torch::nn::Module&>(module));
  auto own = group_at(*tree);
  require(own != nullptr, "fsdp::group_of: module ", module.name(),
          " has no group of its own. Call fsdp::fully_shard on this module first");
  return make_group(std::move(own), std::move(tree));
}

}  // namespace fsdp
