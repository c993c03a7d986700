#pragma once
/// \file
/// What `fully_shard` does with the ranks that its options name.

#include <fsdp/group.h>
#include <fsdp/options.h>

#include <memory>

#include "api/module_tree.h"
#include "runtime/placement.h"

namespace fsdp {

/// Makes groups of the module over `placement`. See fully_shard.
Group shard_over(const runtime::Placement& placement, std::unique_ptr<ModuleNode> tree,
                 const FullyShardOptions& options);

}  // namespace fsdp
