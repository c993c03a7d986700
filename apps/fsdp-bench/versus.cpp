#include "versus.h"

#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <array>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bootstrap.h"
#include "join_ranks.h"
#include "statistics.h"
#include "step_observer.h"
#include "training_step.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

/// An engine and its own trainee.
struct Contestant {
  Trainee trainee;
  /// True if `milliseconds` has bounds of steps (see `bound`), not times of steps.
  bool is_bound = false;
  /// Times of this rank in milliseconds, one value for each step.
  std::vector<double> forward = {}, backward = {}, optimizer_step = {};
  /// Times of which ratios are computed, each from the slowest rank.
  std::vector<double> milliseconds = {};
  std::unique_ptr<StepObserver> observer = nullptr;
};

Contestant make_contestant(StepArguments arguments, const std::string& engine, c10::Device device) {
  arguments.engine = engine;
  return {.trainee = make_trainee(arguments, device)};
}

void take_step(Contestant& contestant, const at::Tensor& batch) {
  fsdp::barrier();
  const auto times = contestant.observer ? contestant.observer->take_step(contestant.trainee, batch)
                                         : train_step(contestant.trainee, batch).times;
  contestant.forward.push_back(times.forward);
  contestant.backward.push_back(times.backward);
  contestant.optimizer_step.push_back(times.optimizer);
  contestant.milliseconds.push_back(
      of_slowest_rank(contestant.is_bound ? bound(times, fsdp::world_size()) : times.total()));
}

std::vector<double> ratios(const Contestant& ours, const Contestant& other) {
  std::vector<double> values;
  for (size_t i = kWarmUpSteps; i < ours.milliseconds.size(); ++i) {
    values.push_back(ours.milliseconds[i] / other.milliseconds[i]);
  }
  return values;
}

Json result(const StepArguments& arguments, const Contestant& ours, const Contestant& other) {
  const auto both = [&](std::vector<double> Contestant::* series) {
    return Json::array(
        {round_to(median_after_warm_up(ours.*series), 1), round_to(median_after_warm_up(other.*series), 1)});
  };
  auto values = ratios(ours, other);
  const Interval interval = bootstrap_median(values);
  Json json;
  json["engine"] = arguments.engine;
  json["versus"] = other.is_bound ? "bound" : arguments.versus;
  json["world"] = fsdp::world_size();
  json["backend"] = arguments.backend;
  json["reshard"] = arguments.reshard;
  json["strategy"] = arguments.sharding.strategy;
  if (!arguments.versus_strategy.empty()) json["versus_strategy"] = arguments.versus_strategy;
  json["mesh"] = arguments.sharding.mesh;
  json["observed"] = arguments.observe;
  json["pairs"] = arguments.pairs;
  json["ratio"] = round_to(median(values), 4);
  json["ratio_95"] = {round_to(interval.low, 4), round_to(interval.high, 4)};
  json["ms_per_step"] = both(&Contestant::milliseconds);
  json["forward_ms"] = both(&Contestant::forward);
  json["backward_ms"] = both(&Contestant::backward);
  json["optimizer_ms"] = both(&Contestant::optimizer_step);
  for (double& value : values) value = round_to(value, 4);
  json["ratios"] = values;
  return json;
}

}  // namespace

void run_versus(const StepArguments& arguments) {
  const c10::Device device = join_ranks(arguments.backend, arguments.world);
  Contestant ours = make_contestant(arguments, arguments.engine, device);
  if (arguments.observe) ours.observer = std::make_unique<StepObserver>(arguments);
  auto plain = arguments;
  plain.activations = {};
  plain.keeps_products = false;
  if (!arguments.versus_strategy.empty()) plain.sharding.strategy = arguments.versus_strategy;
  Contestant other = make_contestant(plain, arguments.versus, device);
  other.is_bound = arguments.versus == "none";
  for (int64_t step = 0; step < kWarmUpSteps + arguments.pairs; ++step) {
    const auto batch = batch_of(arguments, step, device);
    const auto order = step % 2 == 0 ? std::array{&ours, &other} : std::array{&other, &ours};
    for (Contestant* contestant : order) take_step(*contestant, batch);
  }
  if (fsdp::rank() == 0) std::cout << result(arguments, ours, other).dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
