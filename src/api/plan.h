#pragma once
/// \file
/// Which groups a call of `fully_shard` makes.

#include <fsdp/options.h>

#include <string>
#include <vector>

#include "api/module_tree.h"

namespace fsdp {

/// A group to be made of the parameters under a module that no other one has taken.
struct PlannedGroup {
  const ModuleNode* node = nullptr;
  std::string name = {};
  std::vector<runtime::GroupMember> parameters = {};
  /// The modules that have them, by address.
  std::vector<const void*> modules = {};
  /// On one rank, see expected_bytes; and whether they are kept in a file.
  int64_t bytes = 0;
  bool is_on_disk = false;
};

/// Groups of the parameters in `free`, innermost first; the last one is that of the module itself. Changes nothing, and
/// takes time in proportion to the tree.
std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<runtime::NamedParameter>& free,
                                      const FullyShardOptions& options);

}  // namespace fsdp
