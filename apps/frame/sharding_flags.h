#pragma once
/// \file
/// The flags --strategy, --mesh and --cpu-offload, alike in all programs that train.

#include <string>
#include <vector>

namespace CLI {
class App;
}
namespace fsdp {
struct FullyShardOptions;
}

namespace frame {

/// What --strategy takes: "full_shard", "shard_grad_op", "shard_optimizer", "replicate".
std::vector<std::string> strategy_names();

struct ShardingFlags {
  /// One of strategy_names().
  std::string strategy = "full_shard";
  /// "2x4": 2 replicas of 4 ranks that share the rows out; "8": one axis; empty: one axis of all ranks.
  std::string mesh;
  /// Rows, gradients and optimizer state in host memory; the model is built on the CPU then.
  bool cpu_offload = false;
};

/// After the flag --no-cuda, if there is one, which contradicts one of them.
void add_sharding_flags(CLI::App& app, ShardingFlags& flags);

/// The options that they are, with nothing else set. Collective if there is a mesh. Throws what init_device_mesh
/// throws.
fsdp::FullyShardOptions sharding_options(const ShardingFlags& flags);

}  // namespace frame
