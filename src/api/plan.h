#pragma once
/// \file
/// Which groups a call of `fully_shard` makes, which of them are kept in files, and in which dtypes and on which
/// devices what they hold is afterwards.

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
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
  /// On one rank, see expected_bytes; and whether they are kept in a file.
  int64_t bytes = 0;
  bool is_on_disk = false;
};

/// Groups of the parameters in `free`, innermost first; the last one is that of the module itself. Changes nothing.
std::vector<PlannedGroup> plan_groups(const ModuleNode& tree, const std::vector<runtime::NamedParameter>& free,
                                      const FullyShardOptions& options);

/// What rows, gradients and optimizer state of a group take on one of `ranks` ranks, rounded up: of what trains four
/// times the rows, as AdamW does, of what is frozen the rows.
int64_t expected_bytes(const PlannedGroup& group, int ranks);

/// For each group, given in order by its bytes, whether it is kept in a file: those that no longer fit into the limit
/// beside the ones before them, of which earlier calls have taken `taken` bytes.
std::vector<bool> choose_on_disk(std::span<const int64_t> bytes, int64_t taken, int64_t limit);

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

}  // namespace fsdp
