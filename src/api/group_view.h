#pragma once
/// \file
/// The target of a Group handle: the groups under a module, and a tree of its submodules that is the same for
/// torch::nn and TorchScript.

#include <fsdp/group.h>
#include <fsdp/options.h>
#include <fsdp/tensor_cut.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/param_group.h"

namespace fsdp {

/// A module and its submodules.
struct ModuleNode {
  std::string path;  // the module's path from the root; empty for the root
  std::string type;
  const void* identity = nullptr;                   // the module's address, by which the registry finds its group
  torch::nn::Module* module = nullptr;              // null for TorchScript
  bool has_training_flag = true;                    // false for a frozen TorchScript module
  std::vector<runtime::NamedParameter> parameters;  // the module's own parameters, named by their full path
  std::vector<runtime::NamedParameter> buffers;     // the module's own buffers, named likewise
  std::vector<std::unique_ptr<ModuleNode>> children;
};

/// These functions return the tree of a module that has the path `path`.
std::unique_ptr<ModuleNode> module_tree(torch::nn::Module& module, const std::string& path = {});
std::unique_ptr<ModuleNode> module_tree(const torch::jit::Module& module, const std::string& path = {});
/// Returns a node without parameters whose children are the modules, named by their index.
std::unique_ptr<ModuleNode> module_tree(const std::vector<torch::nn::Module*>& modules);

/// Returns the last part of a path: the name of a module, parameter or buffer in its parent.
inline std::string own_name(const std::string& path) { return path.substr(path.rfind('.') + 1); }

/// Returns how the ranks of a tensor axis cut one of the node's own parameters; nothing if they do not cut it.
std::optional<TensorCut> cut_of(const ModuleNode& node, const runtime::NamedParameter& parameter);

/// Returns the module that the user passed to fully_shard, or all modules if the user passed a list.
std::vector<const ModuleNode*> given_modules(const ModuleNode& tree);

void visit_nodes(const ModuleNode& node, const std::function<void(const ModuleNode&)>& visit);

/// Returns the group that `fully_shard` made for the node's module; null if it made none. A destroyed module may have
/// had the same address. Its group is not returned, because it had another owner or, if owners do not tell, has no
/// parameter in this subtree.
std::shared_ptr<runtime::ParamGroup> group_at(const ModuleNode& node);

/// Returns a parameter under the module that is neither in a group nor ignored; undefined if there is none. Such a
/// parameter was registered after fully_shard, so each rank would train its own copy. Every scope calls this function
/// when it opens, so the function collects no names, which would take long.
at::Tensor find_stray(const torch::nn::Module& module);

/// These functions return the parameters of the subtree, its buffers, or both, in the order of the tree. A shared
/// tensor appears once.
std::vector<runtime::NamedParameter> subtree_parameters(const ModuleNode& node);
std::vector<runtime::NamedParameter> subtree_buffers(const ModuleNode& node);
std::vector<runtime::NamedParameter> subtree_tensors(const ModuleNode& node);

/// The groups under one module.
struct GroupView {
  /// The module's own group first, then the others in the order of the tree.
  std::vector<std::shared_ptr<runtime::ParamGroup>> groups;
  /// The module tree when the handle was made. It keeps the parameters alive.
  std::unique_ptr<ModuleNode> tree;

  static const GroupView& of(const Group& group) { return *group.view_; }
  static Group handle_of(std::shared_ptr<const GroupView> view) { return Group(std::move(view)); }
};

inline const std::vector<std::shared_ptr<runtime::ParamGroup>>& param_groups(const Group& group) {
  return GroupView::of(group).groups;
}

Group make_group(std::shared_ptr<runtime::ParamGroup> own, std::unique_ptr<ModuleNode> tree);

/// Returns an account's bytes in the classes that users see.
ByteCounts byte_counts(const memory::ByteAccount& account);

/// Shards the module over `placement`; see fully_shard. Collective.
Group shard_over(runtime::Placement placement, std::unique_ptr<ModuleNode> tree, const FullyShardOptions& options);

}  // namespace fsdp
