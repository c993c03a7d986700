#pragma once
/// \file
/// Buffers that every rank takes from one.

#include "api/module_tree.h"

namespace fsdp {

/// Before a scope opens on `own`, the group of the module `tree`: gives every rank the first one's buffers, of those
/// that have data, if the group is to and gradients are recorded. Collective then.
void broadcast_buffers(runtime::ParamGroup& own, const ModuleNode& tree);

}  // namespace fsdp
