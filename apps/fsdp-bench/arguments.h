#pragma once
/// \file
/// The flags of `fsdp-bench`.

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
  /// Name of the engine. "fsdp" shards the model. With "none", every rank trains a whole model alone. "naive" is "none"
  /// with gradients that are averaged over the ranks.
  std::string engine = "fsdp";
  /// Name of a second engine, whose steps alternate with those of `engine`; empty if there is none.
  std::string versus;
  /// Strategy of the second engine; empty if it has the same strategy.
  std::string versus_strategy;
  /// When groups reshard after forward: "always", "never", or "default", which means that all groups but the root group
  /// reshard.
  std::string reshard = "default";
  /// Number of ranks that together keep whole parameters from forward to backward, whatever `reshard` is; 1 means that
  /// no ranks do.
  int within = 1;
  /// True if the model's head is a group of its own, besides the blocks. Its gradients are the first ones in backward.
  bool groups_head = false;
  /// Bytes of whole parameters that are gathered ahead; 0 means one group of any size.
  int64_t prefetched_bytes = 0;
  /// Precision of whole parameters, operators and sums of gradients: "fp32", "bf16" or "fp16". Rows and losses are
  /// always fp32.
  std::string precision = "fp32";
  frame::ShardingFlags sharding;
  /// Pipeline of the model. The ranks that shard a stage have consecutive numbers, and the ranks of the next stage
  /// follow them.
  frame::PipelineFlags pipeline;
  /// Folder of files that contain the training state; if empty, the state is in memory.
  std::string disk_folder;
  /// Activation checkpointing; with `versus` it applies only to `engine`.
  frame::ActivationFlags activations;
  /// True if backward does not compute matrix products and attention again.
  bool keeps_products = false;

  int64_t dim = 256;
  int64_t layers = 6;
  int64_t heads = 8;
  int64_t vocab = 8192;
  /// Number of sequences per step that one rank trains; with a pipeline, that the ranks of one pipeline train.
  int64_t batch = 4;
  int64_t seq = 128;
  int64_t steps = 12;
  /// Number of pairs of steps, with `versus`.
  int64_t pairs = 60;
  /// True if the steps of `engine` are traced and their metrics written. The steps of `versus` never are.
  bool observe = false;
};

struct CollectivesArguments {
  int world = 2;
  std::string backend = "gloo";
  /// Sizes of the smallest and the largest message.
  int64_t min_bytes = 4;
  int64_t max_bytes = int64_t{256} << 20;
  /// True if the program prints JSON instead of a table.
  bool json = false;
};

struct InterceptArguments {
  int64_t rounds = 2001;
  /// Number of calls of one operator in a measurement. It is small, so that most measurements end before the system
  /// gives the processor to another process.
  int64_t operators = 200;
};

struct OptimArguments {
  /// Number of parameters, and number of elements of all parameters together.
  int64_t tensors = 200;
  int64_t numel = 10'000'000;
  int64_t rounds = 21;
  int64_t threads = 1;
  /// Name of the optimizer: "all", "adamw", "adam", "sgd", "rmsprop" or "adagrad".
  std::string optimizer = "all";
  /// Dtype of whole parameters: "fp32" or "bf16". Rows are fp32.
  std::string param_dtype = "fp32";
};

struct ScalingArguments {
  int world = 2;
  std::string backend = "gloo";
  /// What grows from model to model: "groups", "nesting", "parameters", or "all", which measures one after another.
  std::string of = "all";
  /// Number of groups or parameters of the largest model.
  int64_t largest = 10'000;
  /// True if the program prints JSON instead of a table.
  bool json = false;
};

struct ScaleArguments {
  /// Numbers of ranks of the jobs, which run one after another.
  std::vector<int> ranks = {8, 64, 1024, 16384};
  /// How data travels: "device", "shm", "gloo" or "hierarchical". "device" can only be simulated.
  std::string transport = "device";
  /// True if real ranks, which are forks of this process, train a small model and count the same numbers as the
  /// simulation.
  bool real = false;
  /// Number of blocks of the small model.
  int64_t layers = 3;
};

struct AttentionArguments {
  int world = 2;
  std::string backend = "shm";
  /// Length of the whole sequence in tokens.
  int64_t length = 8192;
  int64_t heads = 8;
  int64_t head_size = 64;
  bool is_causal = true;
  int64_t rounds = 9;
  /// True if the program prints JSON instead of a table.
  bool json = false;
};

struct ActivationsArguments {
  int world = 2;
  std::string backend = "shm";
  /// What ranks split: "tensor" means that each rank has a part of each block; other names are methods by which ranks
  /// split sequences.
  std::string split = "head-tail";
  int64_t batch = 1;
  /// Length of whole sequences in tokens.
  int64_t length = 2048;
  int64_t dim = 256;
  int64_t layers = 12;
  int64_t heads = 8;
  int64_t vocab = 256;
};

struct OverheadArguments {
  int world = 2;
  std::string backend = "auto";
  /// Number of groups of each model that is timed.
  std::vector<int64_t> groups = {10, 100, 1000};
  /// Number of steps of each model that are timed; the unsharded model takes as many.
  int64_t steps = 41;
  /// True if the program prints JSON instead of a table.
  bool json = false;
};

struct ScheduleArguments {
  /// Name of the schedule: "gpipe", "1f1b", "interleaved" or "terapipe".
  std::string schedule = "1f1b";
  int ranks = 4;
  int micro_batches = 8;
  /// Number of stages on each rank, for "interleaved".
  int chunks = 2;
  /// Length of each slice in tokens, for "terapipe".
  std::vector<int64_t> slices = {};
  /// Time of a backward through all stages of a rank. The unit is the time of the forward.
  double backward = 2;
  /// Time to send a stage's output to another rank.
  double transfer = 0;
  /// Milliseconds of a forward through all stages of a rank. If it is above 0, ranks are started and sleep instead of
  /// computing; 0 means that the schedule is simulated.
  double measure = 0;
  int64_t rounds = 3;
  /// True if the program prints JSON instead of a table.
  bool json = false;
};

/// The model that is trained and saved, and the folder for its checkpoints.
struct CheckpointArguments : StepArguments {
  /// Folder on the disk that is measured. The program writes its files to a new folder in it, and removes that folder
  /// in the end.
  std::string folder = ".";
  int64_t rounds = 5;
  /// True if the program prints JSON instead of a table.
  bool json = false;
};

/// The model that is trained, once in memory and once with its training state in files.
struct OffloadArguments : StepArguments {
  /// Folder on the disk that is measured. It needs room for the training state twice.
  std::string folder = ".";
  int64_t rounds = 5;
};

/// These functions add flags to `app`. Each flag fills a member of `arguments`, whose value is the flag's default.
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
