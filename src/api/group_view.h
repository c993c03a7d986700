#pragma once
/// \file
/// What a Group handle refers to.

#include <fsdp/group.h>
#include <fsdp/options.h>

#include <memory>
#include <utility>
#include <vector>

#include "api/module_tree.h"
#include "memory/byte_account.h"
#include "runtime/placement.h"

namespace fsdp {

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
