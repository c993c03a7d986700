#pragma once
/// \file
/// What a call of `fully_shard` decides: what it refuses before anything is communicated, which groups it makes,
/// in which dtypes and on which devices what they hold is, and whether all ranks agree.

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/group_view.h"
#include "runtime/placement.h"

namespace fsdp {

/// A group to be made of the parameters under a module that no other one has taken.
struct PlannedGroup {
  const ModuleNode* node = nullptr;
  std::string name = {};
  std::vector<runtime::GroupMember> parameters = {};
};

/// Groups of the parameters in `free`, innermost first; the last one is that of the module itself. Changes nothing.
std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<runtime::NamedParameter>& free,
                                      const FullyShardOptions& options);

/// The device that is meant: without a number the calling thread's current one.
c10::Device with_index(c10::Device device);

/// Where what is on `found` goes; `of_ranks`: the process group's device.
c10::Device choose_device(const FullyShardOptions& options, c10::Device found, c10::Device of_ranks);

/// Throws UsageError if this process has no such device.
void require_device(c10::Device device, const std::string& where);

/// Throws UsageError for options by which rows cannot be in host memory, or for a device that is not there.
void check_devices(const FullyShardOptions& options, const ModuleNode& tree, c10::Device of_ranks,
                   const std::string& where);

/// Decides where the parameters of the plan go. `found`: where each of them has its values; empty: where it is.
void set_devices(const FullyShardOptions& options, c10::Device of_ranks, std::vector<PlannedGroup>& plan,
                 std::span<const c10::Device> found = {});

/// Whether ranks sum gradients in it, and LibTorch's operators compute in it.
bool can_be_summed(at::ScalarType dtype);

/// Throws UsageError if the policy contradicts itself, or cannot be applied to what is under `tree`.
void check_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, const std::string& where);

/// Gives each floating-point parameter of the plan its precision. Asks the policy which of them stay as they are.
void set_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, std::vector<PlannedGroup>& plan);

/// Calls `init` with every module under `tree`, children first, that has parameters or buffers of its own on the meta
/// device, which nobody sharded or put off. What it computes is put off.
void put_off(const ModuleNode& tree, const std::function<void(torch::nn::Module&)>& init);

/// Gives those of `tensors` whose values were put off their memory, whole.
void compute_deferred(const std::vector<runtime::NamedParameter>& tensors);

/// Compares the ranks' groups, buffers if they are to be synchronised, options and axes; then, unless rank 0's values
/// are taken, the values of parameters by one hash of all. Throws Mismatch; of other values on every rank, naming the
/// first parameter, and the process group can still be used.
///
/// Where rank 0's values are taken, returns the devices to have them on, of the plan's parameters, then of the buffers:
/// of the kinds that rank 0 has them on. Throws UsageError on every rank if rank 0 has no values of some.
std::vector<c10::Device> agree(const runtime::Placement& placement, const std::vector<PlannedGroup>& plan,
                               const std::vector<runtime::NamedParameter>& buffers, const FullyShardOptions& options);

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

/// Throws UsageError if parameters of `groups` are on the meta device.
void require_values(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups, const std::string& operation);

/// Throws UsageError naming the first of the buffers that cannot take rank 0's values.
void check_buffers(const std::vector<runtime::NamedParameter>& buffers, const std::string& where);

/// Of the calls that a value is put off to, and of the random numbers that they will draw.
int64_t fingerprint_of(const at::Tensor& tensor);

}  // namespace fsdp
