#include "arguments.h"

#include <CLI/CLI.hpp>

namespace bench {
namespace {

template <class Value>
CLI::Option* add(CLI::App& app, const char* flag, Value& value, const char* help, const CLI::Validator& check) {
  return app.add_option(flag, value, help)->check(check)->capture_default_str()->take_last();
}

CLI::IsMember engines() { return CLI::IsMember({"fsdp", "naive", "none"}); }

void add_sizes(CLI::App& app, StepArguments& arguments) {
  add(app, "--dim", arguments.dim, "Width of the model, a multiple of --heads", CLI::PositiveNumber);
  add(app, "--layers", arguments.layers, "Blocks", CLI::PositiveNumber);
  add(app, "--heads", arguments.heads, "Number of attention heads in a block", CLI::PositiveNumber);
  add(app, "--vocab", arguments.vocab, "Size of the vocabulary", CLI::PositiveNumber);
  add(app, "--batch", arguments.batch, "Number of sequences per rank and step", CLI::PositiveNumber);
  add(app, "--seq", arguments.seq, "Number of tokens in a sequence", CLI::PositiveNumber);
}

void add_ranks(CLI::App& app, StepArguments& arguments) {
  add(app, "--world", arguments.world, "Number of ranks, each a process with one thread", CLI::PositiveNumber);
  add(app, "--backend", arguments.backend, "How ranks communicate",
      CLI::IsMember({"auto", "shm", "gloo", "hierarchical", "nccl"}));
}

CLI::Option* add_bytes(CLI::App& app, const char* flag, int64_t& bytes, const char* help) {
  return app.add_option(flag, bytes, help)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{4}, int64_t{4} << 30))
      ->take_last();
}

}  // namespace

void add_flags(CLI::App& app, StepArguments& arguments) {
  add_ranks(app, arguments);
  add(app, "--engine", arguments.engine,
      "What trains: fsdp; naive, one blocking all-reduce after backward; or none, where every rank trains alone",
      engines());
  auto* versus =
      add(app, "--versus", arguments.versus,
          "A second engine, whose steps alternate with those of --engine; the ratio of their times is printed. With "
          "none, the ratio is to a lower bound: the time of forward and backward of a rank that trains alone, plus "
          "the optimizer's time for the rank's share of the parameters",
          engines());
  add(app, "--versus-strategy", arguments.versus_strategy,
      "The strategy of the second engine, if it differs from --strategy", CLI::IsMember(frame::strategy_names()))
      ->needs(versus);
  add(app, "--reshard", arguments.reshard,
      "Which groups free their whole parameters after forward: by default all but the outermost group",
      CLI::IsMember({"default", "always", "never"}));
  add(app, "--within", arguments.within,
      "Number of neighbouring ranks that together keep whole parameters from forward to backward (hpZ); 1: off",
      CLI::PositiveNumber);
  app.add_flag("--group-head", arguments.groups_head,
               "Make the model's head a group of its own, so that the gradients of the root group are complete last");
  add_bytes(app, "--prefetch-bytes", arguments.prefetched_bytes,
            "Number of bytes of whole parameters that are gathered ahead; by default those of one group");
  add(app, "--precision", arguments.precision,
      "The dtype in which ranks gather parameters, compute and sum gradients; rows and losses stay fp32",
      CLI::IsMember({"fp32", "bf16", "fp16"}));
  frame::add_sharding_flags(app, arguments.sharding);
  frame::add_pipeline_flags(app, arguments.pipeline);
  app.get_option("--pipe")->excludes(versus);
  frame::add_activation_flags(app, arguments.activations);
  app.add_flag("--keep-products", arguments.keeps_products,
               "Compute blocks again in backward, but keep the results of matrix products and attention");
  add_sizes(app, arguments);
  add(app, "--steps", arguments.steps, "Number of steps; the medians leave out the first two", CLI::Range(3, 1'000'000))
      ->excludes(versus);
  add(app, "--pairs", arguments.pairs, "Number of pairs of steps to measure after two warm-up pairs",
      CLI::PositiveNumber)
      ->needs(versus);
  app.add_flag("--observe", arguments.observe,
               "Trace the steps of --engine, but not those of --versus, and write their metrics to files")
      ->needs(versus);
  app.callback([&arguments] {
    const bool are_sharded = arguments.engine == "fsdp" && (arguments.versus.empty() || arguments.versus == "fsdp");
    if (arguments.precision != "fp32" && !are_sharded)
      throw CLI::ValidationError("--precision",
                                 "expected fp32 with the engines none and naive, which have no mixed-precision policy");
    if (arguments.pipeline.ranks > 1 && arguments.engine != "fsdp")
      throw CLI::ValidationError("--pipe", "expected --engine fsdp: other engines have no stages");
    if (!arguments.versus_strategy.empty() && arguments.versus != "fsdp")
      throw CLI::ValidationError("--versus-strategy", "expected --versus fsdp: other engines have no strategy");
  });
}

void add_flags(CLI::App& app, CollectivesArguments& arguments) {
  add(app, "--world", arguments.world, "Number of ranks, each a process with one thread", CLI::Range(2, 4096));
  add(app, "--backend", arguments.backend, "The backend to compare with Gloo", CLI::IsMember({"shm", "gloo"}));
  add_bytes(app, "--min-bytes", arguments.min_bytes, "Number of bytes in the smallest message, a multiple of 4")
      ->default_str("4");
  add_bytes(app, "--max-bytes", arguments.max_bytes,
            "Largest number of bytes in a message; a rank needs twice as much memory for its buffers")
      ->default_str("256M");
  app.add_flag("--json", arguments.json, "Print one line of JSON instead of a table");
  app.callback([&arguments] {
    if (arguments.min_bytes % 4 != 0) throw CLI::ValidationError("--min-bytes", "expected a multiple of 4");
    if (arguments.min_bytes > arguments.max_bytes) {
      throw CLI::ValidationError("--min-bytes", "expected no more than --max-bytes");
    }
  });
}

void add_flags(CLI::App& app, InterceptArguments& arguments) {
  add(app, "--rounds", arguments.rounds, "Number of rounds; the median is printed", CLI::PositiveNumber);
  add(app, "--operators", arguments.operators, "Number of calls to the operator in each measurement",
      CLI::PositiveNumber);
}

void add_flags(CLI::App& app, OptimArguments& arguments) {
  add(app, "--tensors", arguments.tensors, "Parameters", CLI::PositiveNumber);
  add(app, "--numel", arguments.numel, "Total number of elements in all parameters; each parameter has at least 250",
      CLI::PositiveNumber);
  add(app, "--rounds", arguments.rounds, "Number of steps of each optimizer; the median is printed",
      CLI::PositiveNumber);
  add(app, "--threads", arguments.threads, "Threads", CLI::PositiveNumber);
  add(app, "--optimizer", arguments.optimizer, "The optimizer to measure",
      CLI::IsMember({"all", "adamw", "adam", "sgd", "rmsprop", "adagrad"}));
  add(app, "--param-dtype", arguments.param_dtype, "The dtype of whole parameters; rows are fp32",
      CLI::IsMember({"fp32", "bf16"}));
}

void add_flags(CLI::App& app, ScalingArguments& arguments) {
  add(app, "--world", arguments.world, "Number of ranks, each a process with one thread", CLI::PositiveNumber);
  add(app, "--backend", arguments.backend, "How ranks communicate", CLI::IsMember({"auto", "shm", "gloo"}));
  add(app, "--of", arguments.of, "What grows from model to model",
      CLI::IsMember({"all", "groups", "nesting", "parameters"}));
  add(app, "--largest", arguments.largest,
      "Number of groups or parameters in the largest model; the smaller models have 10, 100, 1000 ...",
      CLI::Range(int64_t{10}, int64_t{1'000'000}));
  app.add_flag("--json", arguments.json, "Print one line of JSON instead of a table");
}

void add_flags(CLI::App& app, ScaleArguments& arguments) {
  app.add_option("--ranks", arguments.ranks, "Jobs to simulate, as a comma-separated list of their numbers of ranks")
      ->delimiter(',')
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  add(app, "--transport", arguments.transport,
      "What carries the data: collectives of a device's backend, or messages and memory of the CPU",
      CLI::IsMember({"device", "gloo", "hierarchical", "shm"}));
  app.add_flag("--real", arguments.real,
               "Start the ranks, let them train a small model, and compare their counts with the simulation's");
  add(app, "--layers", arguments.layers, "With --real: number of blocks in the small model", CLI::PositiveNumber);
  app.footer(
      "For each job of R ranks, this process simulates the ranks 0, 1, R / 2 and R - 1 one after another and prints\n"
      "the largest of their counts. These ranks join, shard and train a small model that has as many groups and\n"
      "parameters as the Llama. No peers run: what a rank receives from a peer is what it sent to that peer. Headers,\n"
      "calls to the store and data (messages or collectives) are counted in one step. Bytes are computed from the\n"
      "Llama's own layout: gathers in bf16, sums and state in fp32. The goal is 4 + log2 R headers and calls\n"
      "to the store.");
  app.callback([&arguments] {
    if (arguments.real && arguments.transport == "device")
      throw CLI::ValidationError("--transport", "expected gloo, hierarchical or shm with --real");
  });
}

void add_flags(CLI::App& app, AttentionArguments& arguments) {
  add(app, "--world", arguments.world, "Number of ranks, each a process with one thread", CLI::PositiveNumber);
  add(app, "--backend", arguments.backend, "How ranks communicate", CLI::IsMember({"auto", "shm", "gloo"}));
  add(app, "--length", arguments.length, "Number of tokens in the sequence, a multiple of twice --world",
      CLI::PositiveNumber);
  add(app, "--heads", arguments.heads, "Number of attention heads, a multiple of --world", CLI::PositiveNumber);
  add(app, "--head-size", arguments.head_size, "Number of features in a head", CLI::PositiveNumber);
  app.add_flag("!--all", arguments.is_causal, "Measure attention that is not causal: every query sees all keys");
  add(app, "--rounds", arguments.rounds, "Number of rounds to measure after one warm-up round; the median is printed",
      CLI::PositiveNumber);
  app.add_flag("--json", arguments.json, "Print one line of JSON instead of a table");
}

void add_flags(CLI::App& app, ActivationsArguments& arguments) {
  add(app, "--world", arguments.world, "Number of ranks, each a process with one thread", CLI::PositiveNumber);
  add(app, "--backend", arguments.backend, "How ranks communicate", CLI::IsMember({"auto", "shm", "gloo"}));
  add(app, "--split", arguments.split, "What the ranks split: each block (tensor), or sequences with the named method",
      CLI::IsMember({"tensor", "head-tail", "ring", "gather", "heads", "ring-self-attention"}));
  add(app, "--batch", arguments.batch, "Sequences", CLI::PositiveNumber);
  add(app, "--length", arguments.length, "Number of tokens in a whole sequence", CLI::PositiveNumber);
  add(app, "--dim", arguments.dim, "Width of the model, a multiple of --heads", CLI::PositiveNumber);
  add(app, "--layers", arguments.layers, "Blocks", CLI::PositiveNumber);
  add(app, "--heads", arguments.heads, "Number of attention heads in a block", CLI::PositiveNumber);
  add(app, "--vocab", arguments.vocab, "Size of the vocabulary", CLI::PositiveNumber);
}

void add_flags(CLI::App& app, OverheadArguments& arguments) {
  add(app, "--world", arguments.world, "Number of ranks, each a process with one thread", CLI::PositiveNumber);
  add(app, "--backend", arguments.backend, "How ranks communicate", CLI::IsMember({"auto", "shm", "gloo", "nccl"}));
  app.add_option("--groups", arguments.groups,
                 "Models to measure, as a comma-separated list of their numbers of groups")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add(app, "--steps", arguments.steps, "Number of steps to measure with each model after three warm-up steps",
      CLI::PositiveNumber);
  app.add_flag("--json", arguments.json, "Print one line of JSON instead of a table");
}

void add_flags(CLI::App& app, ScheduleArguments& arguments) {
  add(app, "--schedule", arguments.schedule, "The schedule of the pipeline",
      CLI::IsMember({"gpipe", "1f1b", "interleaved", "terapipe"}));
  add(app, "--ranks", arguments.ranks, "Number of ranks on the pipeline's axis", CLI::PositiveNumber);
  add(app, "--micro-batches", arguments.micro_batches, "Number of micro-batches in a batch", CLI::PositiveNumber);
  add(app, "--chunks", arguments.chunks, "Number of stages on each rank, for --schedule interleaved",
      CLI::PositiveNumber);
  app.add_option("--slices", arguments.slices,
                 "Number of tokens in each slice, separated by commas, for --schedule terapipe")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  add(app, "--backward", arguments.backward, "Time that a rank's backward takes if its forward takes 1",
      CLI::PositiveNumber);
  auto* transfer = add(app, "--transfer", arguments.transfer, "Time to send the output of a stage to a different rank",
                       CLI::NonNegativeNumber);
  auto* measure =
      add(app, "--measure", arguments.measure,
          "Start the ranks and let them sleep instead of computing: this many milliseconds in forward of all stages on "
          "a rank. Prints the time of a step divided by the time that follows from the schedule",
          CLI::PositiveNumber)
          ->excludes(transfer);
  add(app, "--rounds", arguments.rounds, "Number of steps to measure after one warm-up step; the median is printed",
      CLI::PositiveNumber)
      ->needs(measure);
  app.add_flag("--json", arguments.json, "Print one line of JSON instead of a table");
}

void add_flags(CLI::App& app, CheckpointArguments& arguments) {
  add_ranks(app, arguments);
  frame::add_sharding_flags(app, arguments.sharding);
  add_sizes(app, arguments);
  add(app, "--folder", arguments.folder,
      "Folder on the disk to measure, with room for two checkpoints and two plain copies of their data",
      CLI::ExistingDirectory);
  add(app, "--rounds", arguments.rounds, "Number of rounds to measure after one warm-up round; the median is printed",
      CLI::PositiveNumber);
  app.add_flag("--json", arguments.json, "Print one line of JSON instead of a table");
}

void add_flags(CLI::App& app, OffloadArguments& arguments) {
  add_ranks(app, arguments);
  add_sizes(app, arguments);
  add(app, "--folder", arguments.folder,
      "Folder on the disk to measure, with room for two copies of the training state", CLI::ExistingDirectory);
  add(app, "--rounds", arguments.rounds, "Number of rounds to measure after one warm-up round; the median is printed",
      CLI::PositiveNumber);
}

}  // namespace bench
