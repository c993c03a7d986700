#pragma once
/// \file
/// `fsdp-bench deferred`: how much memory it takes to build, save and load a model that no rank could hold whole.

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace bench {

struct DeferredArguments {
  int world = 2;
  std::string backend = "shm";
  /// Of the checkpoint that is written, or read with `loads`.
  std::string folder;
  bool loads = false;

  /// Together 1.2 billion parameters.
  int64_t dim = 2048;
  int64_t layers = 23;
  int64_t heads = 16;
  int64_t vocab = 16384;
  int64_t seq = 1024;
};
void add_flags(CLI::App& app, DeferredArguments& arguments);

/// Builds a GPT without memory, shards its blocks and the model, and saves it; or shards it without values and loads
/// them. Rank 0 prints one line of JSON: bytes of the parameters, the sum of the ranks' largest proportional set sizes
/// and its ratio to them, beside what the library counts at most, of rows and of whole values. Collective.
void run_deferred(const DeferredArguments& arguments);

}  // namespace bench
