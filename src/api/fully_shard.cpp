#include <fsdp/fully_shard.h>

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <unordered_set>

#include "api/checks.h"
#include "api/group_view.h"
#include "api/module_tree.h"
#include "comm/check.h"
#include "runtime/interceptor.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

using runtime::NamedParameter;
using runtime::ParamGroup;

// What every rank must have alike, in words; its hash is compared.
std::string describe(const std::vector<NamedParameter>& parameters, const FullyShardOptions& options) {
  std::ostringstream text;
  for (const auto& [name, tensor] : parameters)
    text << name << ' ' << tensor.sizes() << ' ' << tensor.strides() << ' ' << tensor.scalar_type() << ' '
         << tensor.requires_grad() << '\n';
  if (options.reshard_after_forward) text << "reshard " << options.reshard_after_forward->after_forward() << '\n';
  return text.str();
}

// Compares the ranks' modules and options: the subject of the barrier is part of its fingerprint. Collective.
void agree(const ProcessGroup& process_group, const std::string& module, const std::vector<NamedParameter>& parameters,
           const FullyShardOptions& options) {
  int64_t numel = 0;
  for (const auto& parameter : parameters) numel += parameter.tensor.numel();
  auto text = describe(parameters, options);
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  process_group.communicator()
      .barrier({c10::str("fully_shard ", module, ": ", parameters.size(), " parameters, ", numel,
                         " elements; names, sizes, dtypes and options hash to ", hash),
                {}})
      ->wait();
}

std::shared_ptr<runtime::RankState> rank_state_of(ProcessGroup& process_group) {
  if (!process_group.rank_state) process_group.rank_state = std::make_shared<runtime::RankState>();
  return process_group.rank_state;
}

// The parameters under the node that no group has taken and that are not ignored.
std::vector<NamedParameter> free_parameters(const ModuleNode& node, const std::vector<at::Tensor>& ignored) {
  auto parameters = subtree_parameters(node);
  std::erase_if(parameters, [&](const NamedParameter& parameter) {
    bool taken = parameter.tensor.has_storage() &&
                 runtime::registry().find(parameter.tensor.storage().unsafeGetStorageImpl()).has_value();
    return taken || std::any_of(ignored.begin(), ignored.end(),
                                [&](const at::Tensor& other) { return other.is_same(parameter.tensor); });
  });
  return parameters;
}

// Groups of modules below this one get it as an ancestor, and they and their parameters learn their names in this tree.
void adopt_descendants(const ModuleNode& tree, ParamGroup& ancestor) {
  std::unordered_set<const ParamGroup*> adopted;
  std::unordered_set<const void*> named;
  visit_nodes(tree, [&](const ModuleNode& node) {
    auto group = group_at(node);
    if (group && group.get() != &ancestor && adopted.insert(group.get()).second) {
      group->add_ancestor(ancestor);
      group->rename(node.path);
    }
    for (const auto& [name, tensor] : node.parameters) {
      if (!tensor.has_storage()) continue;  // an ignored one
      auto part = runtime::registry().find(tensor.storage().unsafeGetStorageImpl());
      if (part && named.insert(tensor.unsafeGetTensorImpl()).second) part->group->rename_slot(part->slot, name);
    }
  });
}

std::shared_ptr<ParamGroup> shard_node(const ModuleNode& node, const std::string& name,
                                       const std::shared_ptr<ProcessGroup>& process_group,
                                       const FullyShardOptions& options) {
  auto parameters = free_parameters(node, options.ignored_params);
  agree(*process_group, name, parameters, options);
  ParamGroup::Spec spec{name, std::move(parameters), process_group, rank_state_of(*process_group), {}};
  if (options.reshard_after_forward) spec.policy.reshard_after_forward = options.reshard_after_forward->after_forward();
  visit_nodes(node, [&](const ModuleNode& module) {
    if (module.identity != nullptr) spec.modules.push_back(module.identity);
  });
  auto group = ParamGroup::create(std::move(spec));
  if (node.identity != nullptr)
    runtime::registry().add_module(node.identity, group);
  else  // a list of modules is found through each of them
    for (const auto& child : node.children) runtime::registry().add_module(child->identity, group);
  adopt_descendants(node, *group);
  return group;
}

// Children first; a module that a group has taken whole is not asked, nor one into which the policy does not descend
// (FSDP1's _recursive_wrap).
void wrap_below(const ModuleNode& node, const std::shared_ptr<ProcessGroup>& process_group,
                const FullyShardOptions& options, bool is_root, std::vector<std::shared_ptr<ParamGroup>>& made) {
  if (!is_root && group_at(node)) return;
  const auto& policy = options.auto_wrap_policy;
  const auto free_numel = [&] {
    int64_t sum = 0;
    for (const auto& parameter : free_parameters(node, options.ignored_params)) sum += parameter.tensor.numel();
    return sum;
  };
  const int64_t before = free_numel();
  if (before == 0 || (policy.descends && !policy.descends({node.path, *node.module, before}))) return;
  for (const auto& child : node.children) wrap_below(*child, process_group, options, false, made);
  const int64_t left = free_numel();
  if (!is_root && left > 0 && policy.wraps({node.path, *node.module, left}))
    made.push_back(shard_node(node, node.path, process_group, options));
}

Group shard_tree(std::unique_ptr<ModuleNode> tree, const FullyShardOptions& options) {
  auto process_group = options.process_group ? options.process_group : default_process_group();
  auto where = fsdp::where(process_group->rank(), process_group->world_size(), "fully_shard");
  check_module(*tree, *process_group, where);
  check_options(options, *tree, where);
  const auto parameters = free_parameters(*tree, options.ignored_params);
  check_parameters(parameters, where);
  if (parameters.empty()) check_order(*tree, where);
  runtime::install_interceptor();
  std::vector<std::shared_ptr<ParamGroup>> made;  // alive until the view holds them
  if (options.auto_wrap_policy.wraps) wrap_below(*tree, process_group, options, /*is_root=*/true, made);
  auto own = shard_node(*tree, tree->type, process_group, options);
  return make_group(std::move(own), std::move(tree));
}

}  // namespace

Group fully_shard(torch::nn::Module& module, const FullyShardOptions& options) {
  return shard_tree(module_tree(module), options);
}

Group fully_shard(const std::vector<torch::nn::Module*>& modules, const FullyShardOptions& options) {
  require(!modules.empty(), "fsdp::fully_shard: an empty list of modules. Name at least one");
  for (const auto* module : modules)
    require(module != nullptr,
            "fsdp::fully_shard: expected modules, found a null pointer in the list. Make them first");
  return shard_tree(module_tree(modules), options);
}

Sharded<torch::jit::Module> fully_shard(torch::jit::Module& module, const FullyShardOptions& options) {
  return {module, shard_tree(module_tree(module), options)};
}

Group group_of(const torch::nn::Module& module) {
  auto tree = module_tree(const_cast<torch::nn::Module&>(module));
  auto own = group_at(*tree);
  require(own != nullptr, "fsdp::group_of: module ", module.name(),
          " has no group of its own. Call fsdp::fully_shard on it first");
  return make_group(std::move(own), std::move(tree));
}

}  // namespace fsdp
