#pragma once
/// \file
/// What `fsdp-bench` can be told on the command line.

#include <cstdint>
#include <string>
#include <vector>

#include "frame/activation_flags.h"
#include "frame/pipeline_flags.h"
#include "frame/sharding_flags.h"

namespace CLI {
class App;
}

namespace bench {

struct StepArguments {
  int world = 2;
  std::string backend = "gloo";
  /// "fsdp"; "none": every rank trains a whole model alone; "naive": the same, with the gradients' mean over the ranks.
  std::string engine = "fsdp";
  /// The engine to take steps in turns with; empty: none of them.
  std::string versus;
  /// Of the engine that it is compared to; empty: the same strategy.
  std::string versus_strategy;
  /// "always", "never", or "default": always, but never for the outermost group.
  std::string reshard = "default";
  /// Among how many ranks whole parameters stay from forward to backward, whatever `reshard` is; 1: not.
  int within = 1;
  /// Whether the head of the model is a group of its own, whose gradients are the first ones, beside the blocks.
  bool groups_head = false;
  /// Of whole parameters; 0: one group, whatever its size.
  int64_t prefetched_bytes = 0;
  /// "fp32"; "bf16" or "fp16": of whole parameters, of operators and of what ranks sum; rows and losses stay fp32.
  std::string precision = "fp32";
  frame::ShardingFlags sharding;
  /// The ranks of a stage, which share its parameters out, are neighbours; those of the next stage come behind them.
  frame::PipelineFlags pipeline;
  /// Of training state in files; empty: it is in memory.
  std::string disk_folder;
  /// With `versus`, of the engine alone.
  frame::ActivationFlags activations;
  /// Of what is computed again, all but products.
  bool keeps_products = false;

  int64_t dim = 256;
  int64_t layers = 6;
  int64_t heads = 8;
  int64_t vocab = 8192;
  /// Of one rank; with a pipeline of the ranks that have the model together.
  int64_t batch = 4;
  int64_t seq = 128;
  int64_t steps = 12;
  /// Of steps, with `versus`.
  int64_t pairs = 60;
  /// With `versus`: the engine's steps are traced and their metrics written, the other's are not.
  bool observe = false;
};

struct CollectivesArguments {
  int world = 2;
  std::string backend = "gloo";
  /// Of a message.
  int64_t min_bytes = 4;
  int64_t max_bytes = int64_t{256} << 20;
  /// Print JSON instead of a table.
  bool json = false;
};

struct InterceptArguments {
  int64_t rounds = 2001;
  /// Operators of one kind in a row, per round. Few, so that most rounds are over before the system takes the
  /// processor.
  int64_t operators = 200;
};

struct OptimArguments {
  /// Parameters, and elements of all of them together.
  int64_t tensors = 200;
  int64_t numel = 10'000'000;
  int64_t rounds = 21;
  int64_t threads = 1;
  /// "all", "adamw", "adam", "sgd", "rmsprop" or "adagrad".
  std::string optimizer = "all";
  /// Of the whole parameters, "fp32" or "bf16"; rows are fp32.
  std::string param_dtype = "fp32";
};

struct ScalingArguments {
  int world = 2;
  std::string backend = "gloo";
  /// "groups", "nesting", "parameters", or "all" of them.
  std::string of = "all";
  /// Number of groups or parameters.
  int64_t largest = 10'000;
  /// Print JSON instead of a table.
  bool json = false;
};

struct ScaleArguments {
  /// Numbers of ranks, one job after the other.
  std::vector<int> ranks = {8, 64, 1024, 16384};
  /// "device", and of jobs that are not simulated "shm", "gloo" or "hierarchical", which any job can have.
  std::string transport = "device";
  /// Real ranks, forks of this process, train a small model, and count what the simulation does.
  bool real = false;
  /// Of the small model.
  int64_t layers = 3;
};

struct AttentionArguments {
  int world = 2;
  std::string backend = "shm";
  /// Of the whole sequence, in tokens.
  int64_t length = 8192;
  int64_t heads = 8;
  int64_t head_size = 64;
  bool is_causal = true;
  int64_t rounds = 9;
  /// Print JSON instead of a table.
  bool json = false;
};

struct ActivationsArguments {
  int world = 2;
  std::string backend = "shm";
  /// "tensor": ranks have a part of each block; else how attention goes over ranks that share sequences.
  std::string split = "head-tail";
  int64_t batch = 1;
  /// Of whole sequences.
  int64_t length = 2048;
  int64_t dim = 256;
  int64_t layers = 12;
  int64_t heads = 8;
  int64_t vocab = 256;
};

struct OverheadArguments {
  int world = 2;
  std::string backend = "auto";
  /// The number of groups of each model that is timed.
  std::vector<int64_t> groups = {10, 100, 1000};
  /// How many steps of each model are timed, sharded and as many unsharded.
  int64_t steps = 41;
  /// Print JSON instead of a table.
  bool json = false;
};

struct ScheduleArguments {
  /// "gpipe", "1f1b", "interleaved" or "terapipe".
  std::string schedule = "1f1b";
  int ranks = 4;
  int micro_batches = 8;
  /// Stages that a rank holds, of "interleaved".
  int chunks = 2;
  /// Tokens of each slice, of "terapipe".
  std::vector<int64_t> slices = {};
  /// How long a backward takes where a forward of a whole rank takes 1.
  double backward = 2;
  /// How long what a stage gives travels to another rank.
  double transfer = 0;
  /// Milliseconds of a rank's forward, for which ranks that are started sleep; 0: the schedule is simulated.
  double measure = 0;
  int64_t rounds = 3;
  /// Print JSON instead of a table.
  bool json = false;
};

/// What is trained and saved, and where.
struct CheckpointArguments : StepArguments {
  /// Lies on the disk that is measured; the files go to a new folder in it, which is removed in the end.
  std::string folder = ".";
  int64_t rounds = 5;
  /// Print JSON instead of a table.
  bool json = false;
};

/// What is trained, in memory and in files of a folder.
struct OffloadArguments : StepArguments {
  /// On the disk to measure; needs room for the training state twice.
  std::string folder = ".";
  int64_t rounds = 5;
};

/// They let `app` fill the arguments, whose values are the defaults.
void add_flags(CLI::App& app, StepArguments& arguments);
void add_flags(CLI::App& app, CollectivesArguments& arguments);
void add_flags(CLI::App& app, InterceptArguments& arguments);
void add_flags(CLI::App& app, OptimArguments& arguments);
void add_flags(CLI::App& app, ScalingArguments& arguments);
void add_flags(CLI::App& app, ScaleArguments& arguments);
void add_flags(CLI::App& app, AttentionArguments& arguments);
void add_flags(CLI::App& app, ActivationsArguments& arguments);
void add_flags(CLI::App& app, OverheadArguments& arguments);
void add_flags(CLI::App& app, ScheduleArguments& arguments);
void add_flags(CLI::App& app, CheckpointArguments& arguments);
void add_flags(CLI::App& app, OffloadArguments& arguments);

}  // namespace bench
