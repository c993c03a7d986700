#include "deferred.h"

#include <fsdp/checkpoint.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "join_ranks.h"
#include "models/gpt.h"
#include "process_memory.h"
#include "statistics.h"

namespace bench {
namespace {

/// Measures the proportional set size of this process every 50 ms while the object exists, and keeps the largest.
class PeakMemory {
 public:
  PeakMemory() : thread_([this] { watch(); }) {}
  ~PeakMemory() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    ended_.notify_one();
    thread_.join();
  }
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  double mb() {
    const std::lock_guard lock(mutex_);
    return peak_mb_ = std::max(peak_mb_, pss_mb());
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    do peak_mb_ = std::max(peak_mb_, pss_mb());
    while (!ended_.wait_for(lock, std::chrono::milliseconds(50), [this] { return ends_; }));
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  double peak_mb_ = 0;
  std::thread thread_;  // This is the last member, because the thread uses the others.
};

models::GPT build(const models::GPTConfig& config, bool without_values) {
  torch::manual_seed(1);
  const auto make = [&] { return models::GPT(config); };
  return without_values ? fsdp::meta_init(make) : fsdp::deferred_init(make);
}

fsdp::Sharded<models::GPT> shard(models::GPT& gpt) {
  for (const auto& block : *gpt->blocks) fsdp::fully_shard(*block);
  return fsdp::fully_shard(gpt);
}

double sum_over_ranks(double value) {
  const auto sum = torch::full({1}, value, torch::kDouble);
  fsdp::default_process_group()->communicator().all_reduce(sum, fsdp::ReduceOp::kSum, {"sum of memory", {}})->wait();
  return sum.item<double>();
}

}  // namespace

void add_flags(CLI::App& app, DeferredArguments& arguments) {
  const auto add = [&](const char* flag, auto& value, const char* help) {
    return app.add_option(flag, value, help)->capture_default_str()->take_last();
  };
  add("folder", arguments.folder, "Folder for the checkpoint")->required();
  app.add_flag("--load", arguments.loads, "Read the checkpoint instead of writing it");
  add("--world", arguments.world, "Number of ranks, each a process with one thread")->check(CLI::PositiveNumber);
  add("--backend", arguments.backend, "How ranks communicate")->check(CLI::IsMember({"auto", "shm", "gloo"}));
  add("--dim", arguments.dim, "Width of the model, a multiple of --heads")->check(CLI::PositiveNumber);
  add("--layers", arguments.layers, "Blocks")->check(CLI::PositiveNumber);
  add("--heads", arguments.heads, "Number of attention heads in a block")->check(CLI::PositiveNumber);
  add("--vocab", arguments.vocab, "Size of the vocabulary")->check(CLI::PositiveNumber);
  add("--seq", arguments.seq, "Number of tokens in the longest context")->check(CLI::PositiveNumber);
}

void run_deferred(const DeferredArguments& arguments) {
  join_ranks(arguments.backend, arguments.world);
  const auto start = std::chrono::steady_clock::now();
  const double before_mb = pss_mb();
  PeakMemory memory;
  auto gpt = build({.vocab = arguments.vocab,
                    .seq = arguments.seq,
                    .dim = arguments.dim,
                    .layers = arguments.layers,
                    .heads = arguments.heads},
                   arguments.loads);
  const auto model = shard(gpt);
  if (arguments.loads) {
    fsdp::to_empty(model, torch::kCPU);
    fsdp::load_checkpoint(arguments.folder, model);
  } else {
    fsdp::save_checkpoint(arguments.folder, model);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const auto stats = model.stats();
  const double parameter_mb = static_cast<double>(stats.parameter_numel) * sizeof(float) / (1 << 20);
  const double peak_mb = sum_over_ranks(memory.mb());
  const auto counted_mb = [&](const fsdp::ByteCount& count) {
    return round_to(sum_over_ranks(static_cast<double>(count.peak) / (1 << 20)), 1);
  };
  const nlohmann::ordered_json line = {{"loads", arguments.loads},
                                       {"world", arguments.world},
                                       {"backend", arguments.backend},
                                       {"parameters", stats.parameter_numel},
                                       {"parameter_mb", round_to(parameter_mb, 1)},
                                       {"pss_before_mb", round_to(sum_over_ranks(before_mb), 1)},
                                       {"peak_pss_mb", round_to(peak_mb, 1)},
                                       {"ratio", round_to(peak_mb / parameter_mb, 4)},
                                       {"peak_rows_mb", counted_mb(stats.rows)},
                                       {"peak_whole_mb", counted_mb(stats.whole)},
                                       {"seconds", round_to(seconds.count(), 2)}};
  if (fsdp::rank() == 0) std::cout << line.dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
