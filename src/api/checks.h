#pragma once
/// \file
/// What `fully_shard` refuses, before anything is communicated.

#include <fsdp/options.h>

#include <memory>
#include <string>
#include <vector>

#include "api/module_tree.h"
#include "api/plan.h"
#include "runtime/placement.h"

namespace fsdp {

void check_options(const FullyShardOptions& options, const ModuleNode& tree, const runtime::Placement& placement,
                   const std::string& where);

void check_module(const ModuleNode& tree, const runtime::Placement& placement, const std::string& where);

/// Throws UsageError if a module around this one, which has no free parameter, was sharded before it.
void check_order(const ModuleNode& tree, const std::string& where);

/// Throws UsageError naming the first that cannot be sharded, or shares its memory with another tensor of the tree.
void check_parameters(const std::vector<runtime::NamedParameter>& parameters, const ModuleNode& tree,
                      const std::string& where);

/// Returns the tensor axis of the modules; null if there is none. Throws UsageError naming the first parameter whose
/// cut cannot be, or that the ranks of `placement` have different parts of, and for parts on several tensor axes.
std::shared_ptr<ProcessGroup> check_cuts(const ModuleNode& tree, const runtime::Placement& placement,
                                         const std::string& where);

/// Throws UsageError if a tensor was written after what it holds had been put off.
void require_put_off(const runtime::NamedParameter& tensor, const std::string& where);

/// Throws UsageError in a scope, a backward or LocalRows of the group, and while its gradients wait. Under the lock.
void require_between_steps(runtime::ParamGroup& group, const std::string& operation);

/// Throws UsageError listing the parameters of `groups` that are on the meta device.
void require_values(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups, const std::string& operation);

/// Throws UsageError naming the first of the buffers that cannot take rank 0's values.
void check_buffers(const std::vector<runtime::NamedParameter>& buffers, const std::string& where);

}  // namespace fsdp
