#pragma once
/// \file
/// `fsdp-bench deferred` measures the memory that it takes to build, save and load a model that no rank could hold
/// whole.

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace bench {

struct DeferredArguments {
  int world = 2;
  std::string backend = "shm";
  /// Folder of the checkpoint, which the program writes, or reads if `loads` is true.
  std::string folder;
  bool loads = false;

  /// The default sizes give 1.2 billion parameters.
  int64_t dim = 2048;
  int64_t layers = 23;
  int64_t heads = 16;
  int64_t vocab = 16384;
  int64_t seq = 1024;
};
void add_flags(CLI::App& app, DeferredArguments& arguments);

/// Builds a GPT without memory, shards its blocks and the model, and saves it. If `loads` is true, the model gets its
/// values from the checkpoint and is not saved. Rank 0 prints one line of JSON. The line has the bytes of the
/// parameters, the sum of the ranks' largest proportional set sizes, the ratio of the two, and the most bytes of rows
/// and of whole parameters that the library counted. Collective.
void run_deferred(const DeferredArguments& arguments);

}  // namespace bench
