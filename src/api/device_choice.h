#pragma once
/// \file
/// On which devices what a call of `fully_shard` shards is afterwards.

#include <fsdp/options.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/plan.h"

namespace fsdp {

/// The device that is meant: without a number the calling thread's current one.
c10::Device with_index(c10::Device device);

/// Where what is on `found` goes; `of_ranks`: the process group's device.
c10::Device choose_device(const FullyShardOptions& options, c10::Device found, c10::Device of_ranks);

/// Throws UsageError if this process has no such device.
void require_device(c10::Device device, const std::string& where);

/// Throws UsageError for options by which rows could not be in host memory, or something would go to a device that is
/// not there.
void check_devices(const FullyShardOptions& options, const ModuleNode& tree, c10::Device of_ranks,
                   const std::string& where);

/// Decides where the parameters of the plan go. `found`: where each of them has its values; empty: where it is.
void set_devices(const FullyShardOptions& options, c10::Device of_ranks, std::vector<PlannedGroup>& plan,
                 std::span<const c10::Device> found = {});

/// Buffers on their way to another device.
class MovingBuffers {
 public:
  /// Takes the memory there.
  MovingBuffers(const FullyShardOptions& options, const ModuleNode& tree, c10::Device of_ranks);
  /// The buffers are there, with the values that they have now.
  void finish();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // and as they will be
};

}  // namespace fsdp
