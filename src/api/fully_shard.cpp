#include <fsdp/fully_shard.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "api/agreement.h"
#include "api/allocate_rows.h"
#include "api/checks.h"
#include "api/deferred_init.h"
#include "api/device_choice.h"
#include "api/group_view.h"
#include "api/module_tree.h"
#include "api/module_watch.h"
#include "api/placement_choice.h"
#include "api/plan.h"
#include "api/precision.h"
#include "comm/core/check.h"
#include "comm/core/log.h"
#include "comm/group/attachment.h"
#include "comm/posix/file.h"
#include "runtime/backward_hooks.h"
#include "runtime/compat.h"
#include "runtime/interceptor.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using runtime::NamedParameter;
using runtime::ParamGroup;

// The parameters under the node that no group has taken and that are not ignored.
std::vector<NamedParameter> free_parameters(const ModuleNode& node, const std::vector<at::Tensor>& ignored) {
  std::unordered_set<const at::TensorImpl*> left_out;
  for (const auto& tensor : ignored) left_out.insert(tensor.unsafeGetTensorImpl());
  auto parameters = subtree_parameters(node);
  std::erase_if(parameters, [&](const NamedParameter& parameter) {
    return runtime::registry().find(parameter.tensor) || left_out.contains(parameter.tensor.unsafeGetTensorImpl());
  });
  return parameters;
}

// Those that were told to be left alone, and have values of their own.
std::vector<NamedParameter> ignored_parameters(const FullyShardOptions& options) {
  std::vector<NamedParameter> ignored;
  for (const auto& tensor : options.ignored_params) ignored.push_back({"", tensor});
  return ignored;
}

// The groups under the tree learn whose modules are around theirs, and they and their parameters their names in it. A
// group that has no parameters lives as long as those that have some of the tree.
void adopt_descendants(const ModuleNode& tree, ParamGroup& outermost) {
  struct Step {
    const ModuleNode* node;
    ParamGroup* around;
  };
  std::unordered_set<const void*> named;
  for (std::vector<Step> steps{{&tree, &outermost}}; !steps.empty();) {
    auto [node, around] = steps.back();
    steps.pop_back();
    if (const auto group = group_at(*node); group && group.get() != around) {
      group->add_parent(*around);
      if (named.insert(group.get()).second) group->rename(node->path);
      around = group.get();
    }
    for (const auto& [name, tensor] : node->parameters) {
      auto part = runtime::registry().find(tensor);
      if (!part || !named.insert(tensor.unsafeGetTensorImpl()).second) continue;
      part->group->rename_slot(part->slot, name);
      if (outermost.slots().empty()) part->group->keep(outermost.shared_from_this());
    }
    for (auto child = node->children.rbegin(); child != node->children.rend(); ++child)
      steps.push_back({child->get(), around});
  }
}

// Where every rank takes its rows from. Collective if it is rank 0's values.
std::vector<runtime::RowSource> sources_of(const PlannedGroup& planned, const ProcessGroup& process_group,
                                           const FullyShardOptions& options) {
  std::vector<runtime::RowSource> sources;
  if (options.sync_module_states) {
    std::vector<WantedValues> wanted;
    for (const auto& parameter : planned.parameters) wanted.push_back({parameter.tensor, parameter.form->device});
    for (auto& whole : values_of_rank(0, process_group, wanted, "fully_shard, sync_module_states of " + planned.name))
      sources.push_back(runtime::rows_of_tensor(std::move(whole)));
  } else {
    for (const auto& parameter : planned.parameters) sources.push_back(runtime::rows_of_tensor(parameter.tensor));
  }
  return sources;
}

runtime::GroupPolicy policy_of(const FullyShardOptions& options) {
  runtime::GroupPolicy policy;
  policy.told_to_broadcast = options.broadcast_buffers;
  policy.bucket_cap_bytes = options.bucket_cap_bytes;
  policy.max_prefetched_bytes = options.max_prefetched_bytes;
  if (const auto& offload = options.offload_policy)
    policy.row_memory = offload->pin_memory ? runtime::RowMemory::kPinned : runtime::RowMemory::kHost;
  if (const auto& precision = options.mp_policy) {
    if (precision->cast_forward_inputs) policy.input_dtype = precision->param_dtype;
    policy.output_dtype = precision->output_dtype;
  }
  apply_strategy(options.strategy, policy);
  const auto& reshard = options.reshard_after_forward;
  if (reshard && options.strategy == Strategy::kFullShard) policy.reshard_after_forward = reshard->after_forward();
  return policy;
}

// The same placement with the neighbours of Reshard::within. Collective when it is the first with them.
runtime::Placement with_neighbours(const runtime::Placement& placement, const FullyShardOptions& options) {
  const auto& shard = placement.shard();
  const int count = options.reshard_after_forward ? options.reshard_after_forward->ranks().value_or(1) : 1;
  if (count == 1 || count == shard.world_size()) return placement;
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < shard.world_size(); ++rank) {
    if (rank % count == 0) groups.emplace_back();
    groups.back().push_back(shard.global_ranks()[static_cast<size_t>(rank)]);
  }
  const auto& own = groups[static_cast<size_t>(shard.rank() / count)];
  auto& made = Attachment::of<runtime::RankState>(placement.process_group())->neighbours[own];
  if (!made) made = shard.split(groups, "within");
  return placement.with_neighbours(made);
}

// Of any rank: what is gone on one may be held by a graph on another, and all have to choose alike.
int64_t most_taken(ProcessGroup& process_group) {
  int64_t taken = 0;
  for (const auto* group : Attachment::of<runtime::RankState>(process_group)->groups())
    if (group->policy.disk_folder.empty()) taken += group->policy.expected_bytes;
  auto most = at::full({1}, taken, at::kLong);
  process_group.communicator().all_reduce(most, ReduceOp::kMax, {"fully_shard, host memory taken", {}})->wait();
  return most.item<int64_t>();
}

// Which of the planned groups are kept in files, beside those that are there.
void choose_where_kept(std::vector<PlannedGroup>& plan, const runtime::Placement& placement,
                       const FullyShardOptions& options) {
  std::vector<int64_t> bytes;
  for (auto& group : plan) bytes.push_back(group.bytes = expected_bytes(group, placement.shard().world_size()));
  if (!options.disk_policy) return;
  const auto is_on_disk =
      choose_on_disk(bytes, most_taken(placement.process_group()), options.disk_policy->host_limit_bytes);
  for (size_t i = 0; i < plan.size(); ++i) plan[i].is_on_disk = is_on_disk[i];
}

// Collective where ranks share memory or take rank 0's values; the parameters stay as they are.
std::vector<std::shared_ptr<ParamGroup>> create_groups(const std::vector<PlannedGroup>& plan,
                                                       const runtime::Placement& placement,
                                                       const FullyShardOptions& options) {
  std::vector<std::shared_ptr<ParamGroup>> groups;
  const auto rank_state = Attachment::of<runtime::RankState>(placement.process_group());
  // Other threads read the pointer once there are groups.
  if (auto timeline = Attachment::ranks_of(placement.process_group()).timeline;
      timeline && timeline != rank_state->timeline)
    rank_state->timeline = std::move(timeline);
  for (const auto& planned : plan) {
    auto policy = policy_of(options);
    policy.expected_bytes = planned.bytes;
    if (planned.is_on_disk) policy.disk_folder = absolute_path(options.disk_policy->folder);
    groups.push_back(ParamGroup::create(
        {planned.name, planned.parameters, placement, rank_state, std::move(policy), planned.modules}));
  }
  std::vector<runtime::Parts*> parts;
  for (const auto& group : groups) parts.push_back(&group->parts());
  allocate_rows(parts, "fully_shard");
  for (size_t i = 0; i < plan.size(); ++i)
    groups[i]->params().take_rows(sources_of(plan[i], placement.process_group(), options));
  for (const auto& planned : plan)
    log(LogLevel::kInfo, placement.where("fully_shard"),
        str_cat("group '", planned.name, "' of ", planned.parameters.size(), " parameters"));
  return groups;
}

// Rank 0's, in the end on devices. Those on the meta device, which take their place, lie as they do. Collective.
std::vector<at::Tensor> values_of_buffers(const std::vector<NamedParameter>& buffers,
                                          std::span<const c10::Device> devices, const ProcessGroup& process_group,
                                          const FullyShardOptions& options) {
  std::vector<WantedValues> wanted;
  for (size_t i = 0; i < buffers.size(); ++i)
    wanted.push_back({buffers[i].tensor, choose_device(options, devices[i], process_group.device())});
  auto values = values_of_rank(0, process_group, wanted, "fully_shard, sync_module_states of buffers");
  for (size_t i = 0; i < buffers.size(); ++i)
    if (const auto& buffer = buffers[i].tensor; buffer.is_meta())
      values[i] = at::empty_strided(buffer.sizes(), buffer.strides(), values[i].options()).copy_(values[i]);
  return values;
}

std::shared_ptr<ModuleWatch> watch_of(const ModuleNode& node) {
  std::vector<torch::nn::Module*> modules;
  if (node.module != nullptr) modules.push_back(node.module);
  if (node.identity == nullptr)
    for (const auto& child : node.children) modules.push_back(child->module);
  return modules.empty() ? nullptr : std::make_shared<ModuleWatch>(modules);
}

// A module that no shared pointer owns gets one that has gone already: to everybody else it is as it was.
std::weak_ptr<torch::nn::Module> owner_of(torch::nn::Module* module) {
  if (module == nullptr) return {};
  if (module->weak_from_this().expired()) std::shared_ptr<torch::nn::Module>(module, [](auto*) {}).reset();
  return module->weak_from_this();
}

void install_group(const ModuleNode& node, const std::shared_ptr<ParamGroup>& group,
                   const std::shared_ptr<const ParamGroup::Ignored>& ignored) {
  group->params().install(group);
  runtime::hook_parameters(group);
  group->watch = watch_of(node);
  group->ignored = ignored;
  const auto found_through = [&](const ModuleNode& at) {
    runtime::registry().add_module(at.identity, owner_of(at.module), group);
  };
  if (node.identity != nullptr)
    found_through(node);
  else  // a list of modules is found through each of them
    for (const auto& child : node.children) found_through(*child);
}

}  // namespace

Group shard_over(const runtime::Placement& placement, std::unique_ptr<ModuleNode> tree,
                 const FullyShardOptions& options) {
  const auto where = placement.where("fully_shard");
  require(!c10::impl::tls_local_dispatch_key_set().included_.has(runtime::kDeferredKey), where,
          "it was called inside deferred_init or meta_init. Shard what they return");
  check_module(*tree, placement, where);
  check_options(options, *tree, placement, where);
  if (options.param_init_fn) put_off(*tree, options.param_init_fn);
  const auto parameters = free_parameters(*tree, options.ignored_params);
  check_parameters(parameters, *tree, where);
  if (parameters.empty()) check_order(*tree, where);
  auto plan = plan_groups(*tree, parameters, options);
  const auto of_ranks = placement.process_group().device();
  set_devices(options, of_ranks, plan);
  if (options.mp_policy) set_precision(*options.mp_policy, *tree, plan);
  choose_where_kept(plan, placement, options);
  auto buffers = subtree_buffers(*tree);
  if (!options.sync_module_states || placement.process_group().rank() == 0) compute_deferred(buffers);
  compute_deferred(ignored_parameters(options));
  if (!options.sync_module_states && !policy_of(options).broadcasts_buffers) buffers.clear();
  if (!options.sync_module_states)  // on the meta device: before the first forward they have values
    std::erase_if(buffers, [](const NamedParameter& buffer) { return buffer.tensor.is_meta(); });
  check_buffers(buffers, where);
  runtime::install_interceptor();
  const auto devices = agree(placement, plan, buffers, options);
  if (options.sync_module_states) set_devices(options, of_ranks, plan, devices);
  const auto groups = create_groups(plan, with_neighbours(placement, options), options);
  if (!options.sync_module_states) buffers.clear();
  const auto buffer_values =
      values_of_buffers(buffers, std::span(devices).last(buffers.size()), placement.process_group(), options);
  MovingBuffers moving(options, *tree, of_ranks);
  // Up to here the model is as it was, whatever was thrown; what follows neither communicates nor throws.
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (const auto& buffer = buffers[i].tensor; buffer.is_meta())
      buffer.unsafeGetTensorImpl()->shallow_copy_from(buffer_values[i].getIntrusivePtr());
    else
      buffer.copy_(buffer_values[i]);
  moving.finish();
  const auto ignored = std::make_shared<ParamGroup::Ignored>();
  for (const auto& tensor : options.ignored_params) {
    ignored->emplace_back(tensor.getIntrusivePtr());
    runtime::registry().leaves.leave_out(tensor);
  }
  if (placement.process_group().world_size() > 1) runtime::registry().leaves.begin();
  for (size_t i = 0; i < plan.size(); ++i) install_group(*plan[i].node, groups[i], ignored);
  adopt_descendants(*tree, *groups.back());
  return make_group(groups.back(), std::move(tree));
}

Group fully_shard(torch::nn::Module& module, const FullyShardOptions& options) {
  return shard_over(choose_placement(options), module_tree(module), options);
}

Group fully_shard(const std::vector<torch::nn::Module*>& modules, const FullyShardOptions& options) {
  require(!modules.empty(), "fsdp::fully_shard: an empty list of modules. Name at least one");
  for (const auto* module : modules)
    require(module != nullptr,
            "fsdp::fully_shard: expected modules, found a null pointer in the list. Make them first");
  return shard_over(choose_placement(options), module_tree(modules), options);
}

Sharded<torch::jit::Module> fully_shard(torch::jit::Module& module, const FullyShardOptions& options) {
  return {module, shard_over(choose_placement(options), module_tree(module), options)};
}

Group group_of(const torch::nn::Module& module) {
  auto tree = module_tree(const_cast<torch::nn::Module&>(module));
  auto own = group_at(*tree);
  require(own != nullptr, "fsdp::group_of: module ", module.name(),
          " has no group of its own. Call fsdp::fully_shard on it first");
  return make_group(std::move(own), std::move(tree));
}

}  // namespace fsdp
