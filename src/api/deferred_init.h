#pragma once
/// \file
/// Modules whose values are computed when they are sharded.

#include <functional>
#include <vector>

#include "api/module_tree.h"

namespace fsdp {

/// Calls `init` with every module under `tree`, children first, that has parameters or buffers of its own on the meta
/// device, which nobody sharded or put off. What it computes is put off.
void put_off(const ModuleNode& tree, const std::function<void(torch::nn::Module&)>& init);

/// Gives those of `tensors` whose values were put off their memory, whole.
void compute_deferred(const std::vector<runtime::NamedParameter>& tensors);

}  // namespace fsdp
