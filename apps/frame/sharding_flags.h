#pragma once
/// \file
/// Defines the flags --strategy, --mesh and --cpu-offload, which all programs that train share.

#include <string>
#include <vector>

namespace CLI {
class App;
}
namespace fsdp {
struct FullyShardOptions;
}

namespace frame {

/// Returns the values that --strategy takes: "full_shard", "replicate", "shard_grad_op" and "shard_optimizer".
std::vector<std::string> strategy_names();

struct ShardingFlags {
  /// Name of the strategy, one of strategy_names().
  std::string strategy = "full_shard";
  /// Sizes of the mesh: "2x4" means 2 replicas of 4 ranks that shard the parameters; "8" means one axis of 8 ranks. If
  /// it is empty, all ranks form one axis.
  std::string mesh;
  /// True if rows, gradients and optimizer state are in host memory. The program then builds the model on the CPU.
  bool cpu_offload = false;
};

/// Adds the flags. If `app` has a flag --no-cuda, it must have been added before, because --cpu-offload excludes it.
void add_sharding_flags(CLI::App& app, ShardingFlags& flags);

/// Returns the options that the flags describe; all other options keep their defaults. Collective if the flags describe
/// a mesh. Throws what init_device_mesh throws.
fsdp::FullyShardOptions sharding_options(const ShardingFlags& flags);

}  // namespace frame
