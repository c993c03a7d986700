#pragma once
/// \file
/// A program, executed.

#include <fsdp/device_mesh.h>

#include <functional>
#include <map>
#include <vector>

#include "program_fuzz/program.h"
#include "program_fuzz/values.h"

namespace fsdp::test::fuzz {

/// Errors that are planted to see that they are found.
enum class Plant : uint8_t {
  kNothing,
  kGradient,  ///< rank 1 adds a thousandth to the gradients that it shows
  kSkip,      ///< the unsharded run leaves out what optimizers and writes do
};

/// What a rank tells others while it runs. Each is called in the order of execution.
struct Watch {
  /// Before a statement.
  std::function<void(const Statement&)> begins;
  /// Where the statement's lag is to take place.
  std::function<void(const Lag&)> lags;
};

/// Meshes of all ranks of the default process group, each made once.
class Meshes {
 public:
  /// With this many ranks along "shard". Collective the first time.
  const DeviceMesh& with(int shards) {
    const auto made = meshes_.find(shards);
    if (made != meshes_.end()) return made->second;
    return meshes_.emplace(shards, init_device_mesh({world_size() / shards, shards}, {"replicate", "shard"}))
        .first->second;
  }

 private:
  std::map<int, DeviceMesh> meshes_;
};

/// Runs the program on this rank of the default process group. Collective. Throws what the library throws where the
/// program does not expect it.
std::vector<Value> run_sharded(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes);

/// The values of every rank, by a model for each of them that nobody shards: gradients of a backward are summed in rank
/// order and multiplied by 1/divisor once, as the library promises, so they have the same bits.
std::vector<Value> run_unsharded(const Program& program, Plant plant);

}  // namespace fsdp::test::fuzz
