#pragma once
/// \file
/// The decisions of a call of `fully_shard`: what it refuses before it communicates, which groups it makes, with which
/// dtypes and on which devices, and whether all ranks agree.

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/group_view.h"

namespace fsdp {

/// A group that fully_shard is going to make. Its parameters lie under one module and are in no other group.
struct PlannedGroup {
  const ModuleNode* node = nullptr;
  std::string name = {};
  std::vector<runtime::GroupMember> parameters = {};
};

/// Returns the groups of the parameters in `free`, innermost first; the last one is the group of the module itself.
/// Changes nothing.
std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<runtime::NamedParameter>& free,
                                      const FullyShardOptions& options);

/// Returns the device with its index. A device without an index means the calling thread's current device of its type.
c10::Device with_index(c10::Device device);

/// Returns the device to which the options move a tensor that is on `found`. `of_ranks` is the process group's device.
c10::Device choose_device(const FullyShardOptions& options, c10::Device found, c10::Device of_ranks);

/// Throws UsageError if this process has no such device.
void require_device(c10::Device device, const std::string& where);

/// Sets the device of each parameter of the plan. `found` has the devices on which the values are, in the order of the
/// plan; if it is empty, they are on the devices of the parameters themselves.
void set_devices(const FullyShardOptions& options, c10::Device of_ranks, std::vector<PlannedGroup>& plan,
                 std::span<const c10::Device> found);

/// Sets the precision of each floating-point parameter of the plan. MixedPrecisionPolicy::keeps_precision decides which
/// of them keep their dtype.
void set_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, std::vector<PlannedGroup>& plan);

/// Calls `init` with each module under `tree`, children first, if some of its own parameters or buffers are on the meta
/// device and neither sharded nor deferred. What `init` computes is deferred.
void put_off(const ModuleNode& tree, const std::function<void(torch::nn::Module&)>& init);

/// Gives memory and values to those of `tensors` whose values were deferred.
void compute_deferred(const std::vector<runtime::NamedParameter>& tensors);

/// Compares the groups of all ranks, `buffers`, the options and the axes. With FullyShardOptions::sync_module_states
/// ranks may have different values; otherwise the function also compares one hash of all parameters' values. Throws
/// Mismatch if the ranks differ. If only values differ, every rank throws it, the message names the first such
/// parameter, and the process group can still be used.
///
/// With sync_module_states the function returns a device for each of the plan's parameters and then for each buffer:
/// this rank's device of the type on which rank 0 has the tensor. Throws UsageError on every rank if some tensor has no
/// values on rank 0. Collective.
std::vector<c10::Device> agree(const runtime::Placement& placement, const std::vector<PlannedGroup>& plan,
                               const std::vector<runtime::NamedParameter>& buffers, const FullyShardOptions& options);

/// Throws UsageError if the module cannot be sharded, at all or with these options.
void check_call(const FullyShardOptions& options, const ModuleNode& tree, const runtime::Placement& placement,
                const std::string& where);

/// Throws UsageError naming the first parameter that cannot be sharded or that shares its memory with another tensor of
/// the tree. If all parameters are in groups already, throws UsageError if a module around the tree was sharded first.
void check_parameters(const std::vector<runtime::NamedParameter>& parameters, const ModuleNode& tree,
                      const std::string& where);

/// Returns the tensor axis of the modules; null if there is none. Throws UsageError naming the first parameter with an
/// invalid TensorCut or a second tensor axis, and if two ranks of `placement` have different parts of the parameters.
std::shared_ptr<ProcessGroup> check_cuts(const ModuleNode& tree, const runtime::Placement& placement,
                                         const std::string& where);

/// Throws UsageError if an operator wrote to a deferred tensor after deferred_init had ended, so that the write is
/// lost.
void require_put_off(const runtime::NamedParameter& tensor, const std::string& where);

/// Throws UsageError in a scope, a backward or a LocalRows of the group, and while its gradients wait for a reduction.
/// The caller holds the rank's lock.
void require_between_steps(runtime::ParamGroup& group, const std::string& operation);

/// Throws UsageError if parameters of `groups` are on the meta device.
void require_values(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups, const std::string& operation);

/// Throws UsageError naming the first buffer to which fsdp could not write rank 0's values.
void check_buffers(const std::vector<runtime::NamedParameter>& buffers, const std::string& where);

/// Returns a hash of the calls that compute the tensor's deferred value, and of the states of their generators.
int64_t fingerprint_of(const at::Tensor& tensor);

}  // namespace fsdp
