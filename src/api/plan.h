#pragma once
/// \file
/// Which groups a call of `fully_shard` makes, and which of them are kept in files.

#include <fsdp/options.h>

#include <cstdint>
#include <span>
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

/// What rows, gradients and optimizer state of a group take on one of `ranks` ranks, rounded up: of what trains four
/// times the rows, as AdamW does, of what is frozen the rows.
int64_t expected_bytes(const PlannedGroup& group, int ranks);

/// For each group, given in order by its bytes, whether it is kept in a file: those that no longer fit into the limit
/// beside the ones before them, of which earlier calls have taken `taken` bytes.
std::vector<bool> choose_on_disk(std::span<const int64_t> bytes, int64_t taken, int64_t limit);

}  // namespace fsdp
