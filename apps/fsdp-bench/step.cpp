#include "step.h"

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "fused_adamw.h"
#include "models/gpt.h"
#include "process_memory.h"
#include "statistics.h"
#include "trainee.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

/// Steps that only warm up; memory is taken in the one that follows.
constexpr int64_t kWarmUpSteps = 2;

/// A value for each step; times in milliseconds.
struct Series {
  std::vector<double> forward, backward, optimizer, total, losses;
};

struct Memory {
  double pss_mb = 0;
  fsdp::GroupStats stats;
  int64_t optimizer_bytes = 0;
};

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

at::Tensor batch_of(const StepArguments& arguments, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  const auto joined =
      torch::randint(arguments.vocab, {fsdp::world_size() * arguments.batch, arguments.seq + 1}, torch::kInt64);
  return joined.narrow(0, fsdp::rank() * arguments.batch, arguments.batch);
}

/// In the dtype of the losses, as the peer does it.
double mean_over_ranks(const at::Tensor& loss) {
  const auto sum = loss.detach().reshape({1}).clone();
  fsdp::default_process_group()->communicator().all_reduce(sum, fsdp::ReduceOp::kSum, {"loss", {}})->wait();
  return sum.item<double>() / fsdp::world_size();
}

void take_step(const StepArguments& arguments, int64_t step, Trainee& trainee, FusedAdamW& optimizer, Series& series,
               Memory& memory) {
  const auto batch = batch_of(arguments, step);
  const auto start = Clock::now();
  optimizer.zero_grad();
  const auto loss =
      models::next_token_loss(trainee.forward(batch.narrow(1, 0, arguments.seq)), batch.narrow(1, 1, arguments.seq));
  const auto forward_end = Clock::now();
  loss.backward();
  const auto backward_end = Clock::now();
  if (step == kWarmUpSteps) memory = {pss_mb(), trainee.stats(), optimizer.state_bytes()};
  const auto optimizer_start = Clock::now();
  optimizer.step();
  const auto end = Clock::now();
  series.forward.push_back(milliseconds(forward_end - start));
  series.backward.push_back(milliseconds(backward_end - forward_end));
  series.optimizer.push_back(milliseconds(end - optimizer_start));
  series.total.push_back(milliseconds(backward_end - start + (end - optimizer_start)));
  series.losses.push_back(round_to(mean_over_ranks(loss), 6));
}

double median_after_warm_up(const std::vector<double>& values) {
  return median({values.begin() + kWarmUpSteps, values.end()});
}

Json byte_class(int64_t current, int64_t peak) { return {{"current", current}, {"peak", peak}}; }

/// `last`: the stats after the last step; what the peaks are taken from.
Json result(const StepArguments& arguments, const Series& series, const Memory& memory, const fsdp::GroupStats& last) {
  const double total = median_after_warm_up(series.total);
  const auto tokens = static_cast<double>(fsdp::world_size() * arguments.batch * arguments.seq);
  const auto& now = memory.stats;
  Json json;
  json["engine"] = arguments.engine;
  json["world"] = fsdp::world_size();
  json["backend"] = arguments.backend;
  json["reshard"] = arguments.reshard;
  json["ms_per_step"] = round_to(total, 1);
  json["tokens_per_s"] = static_cast<int64_t>(std::llround(tokens / total * 1e3));
  json["pss_mb"] = static_cast<int64_t>(std::llround(memory.pss_mb));
  json["forward_ms"] = round_to(median_after_warm_up(series.forward), 1);
  json["backward_ms"] = round_to(median_after_warm_up(series.backward), 1);
  json["optimizer_ms"] = round_to(median_after_warm_up(series.optimizer), 1);
  json["bytes"] = {{"rows", byte_class(now.rows.current, last.rows.peak)},
                   {"whole", byte_class(now.whole.current, last.whole.peak)},
                   {"gradient", byte_class(now.gradient.current, last.gradient.peak)},
                   {"optimizer", byte_class(memory.optimizer_bytes, memory.optimizer_bytes)}};
  json["gathers_per_step"] = static_cast<double>(last.gathers) / static_cast<double>(arguments.steps);
  json["reductions_per_step"] = static_cast<double>(last.reductions) / static_cast<double>(arguments.steps);
  json["losses"] = series.losses;
  return json;
}

}  // namespace

void run_step(const StepArguments& arguments) {
  torch::set_num_threads(1);
  fsdp::init_process_group({.backend = arguments.backend});
  if (fsdp::world_size() != arguments.world) {
    throw fsdp::UsageError(
        "fsdp-bench step: --world is " + std::to_string(arguments.world) + ", but this is one of " +
        std::to_string(fsdp::world_size()) +
        " ranks that a launcher started. Give --world that number, or start fsdp-bench without one.");
  }
  Trainee trainee = make_trainee(arguments);
  FusedAdamW optimizer(trainee.parameters);
  Series series;
  Memory memory;
  for (int64_t step = 0; step < arguments.steps; ++step) {
    take_step(arguments, step, trainee, optimizer, series, memory);
  }
  if (fsdp::rank() == 0) std::cout << result(arguments, series, memory, trainee.stats()).dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
