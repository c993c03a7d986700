#pragma once
/// \file
/// What a Group handle refers to: the groups under a module, and one picture of its tree, whether torch::nn or
/// TorchScript.

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

#include "memory/byte_account.h"
#include "runtime/param_slot.h"
#include "runtime/placement.h"

namespace fsdp {

namespace runtime {
class ParamGroup;
}

struct ModuleNode {
  std::string name;  // below its parent
  std::string path;  // below the root; empty for the root
  std::string type;
  const void* identity = nullptr;                   // the module's address, for the registry
  torch::nn::Module* module = nullptr;              // null for TorchScript
  bool has_training_flag = true;                    // a frozen TorchScript module has none
  std::vector<runtime::NamedParameter> parameters;  // its own, named by their full path
  std::vector<runtime::NamedParameter> buffers;     // the same of its buffers
  std::vector<std::unique_ptr<ModuleNode>> children;
};

std::unique_ptr<ModuleNode> module_tree(torch::nn::Module& module);
std::unique_ptr<ModuleNode> module_tree(const torch::jit::Module& module);
/// A node without parameters above several modules, named by their position.
std::unique_ptr<ModuleNode> module_tree(const std::vector<torch::nn::Module*>& modules);

/// How the ranks of a tensor axis cut one of the node's own parameters, if they do.
std::optional<TensorCut> cut_of(const ModuleNode& node, const runtime::NamedParameter& parameter);

/// The module that a call was given, or those of a list.
std::vector<const ModuleNode*> given_modules(const ModuleNode& tree);

void visit_nodes(const ModuleNode& node, const std::function<void(const ModuleNode&)>& visit);

/// The group that `fully_shard` made of the node's module; null if it made none. A module that is gone may have left
/// its address to this one: its group keeps no parameter here.
std::shared_ptr<runtime::ParamGroup> group_at(const ModuleNode& node);

/// Returns a parameter under the module that is neither in a group nor ignored, because it was registered after
/// fully_shard: each rank would train its own copy. Returns an undefined tensor if there is none. Each scope that opens
/// calls this function, so it makes no names.
at::Tensor find_stray(const torch::nn::Module& module);

/// The parameters of the subtree in the order of the tree, a shared one once; its buffers; both.
std::vector<runtime::NamedParameter> subtree_parameters(const ModuleNode& node);
std::vector<runtime::NamedParameter> subtree_buffers(const ModuleNode& node);
std::vector<runtime::NamedParameter> subtree_tensors(const ModuleNode& node);

/// The groups under one module: its own first, then the others in the order of the tree.
struct GroupView {
  std::vector<std::shared_ptr<runtime::ParamGroup>> groups;
  /// The module tree when the handle was made; it keeps the parameters alive.
  std::unique_ptr<ModuleNode> tree;

  static const GroupView& of(const Group& group) { return *group.view_; }
  static Group handle_of(std::shared_ptr<const GroupView> view) { return Group(std::move(view)); }
};

inline const std::vector<std::shared_ptr<runtime::ParamGroup>>& param_groups(const Group& group) {
  return GroupView::of(group).groups;
}

Group make_group(std::shared_ptr<runtime::ParamGroup> own, std::unique_ptr<ModuleNode> tree);

/// An account's bytes as users see them.
ByteCounts byte_counts(const memory::ByteAccount& account);

/// Makes groups of the module over `placement`. See fully_shard.
Group shard_over(runtime::Placement placement, std::unique_ptr<ModuleNode> tree, const FullyShardOptions& options);

}  // namespace fsdp
