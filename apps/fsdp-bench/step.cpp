#include "step.h"

#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "device_memory.h"
#include "join_ranks.h"
#include "process_memory.h"
#include "statistics.h"
#include "training_step.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

/// One value for each step; times are in milliseconds.
struct Series {
  std::vector<double> forward, backward, optimizer, total, losses;
};

struct Memory {
  /// Memory in MiB. On the CPU it is the process's proportional set size after the backward of the first step after the
  /// warm-up. On a GPU it is the peak of device memory from that step to the end.
  double mb = 0;
  /// Statistics after the same backward, and after the last step. The printed peaks are from `last`.
  fsdp::GroupStats then, last;
};

/// Returns the mean loss over the ranks, which is computed in the losses' dtype, as in the Python script. Collective.
double mean_over_ranks(const at::Tensor& loss) {
  const auto sum = loss.reshape({1}).clone();
  fsdp::default_process_group()->communicator().all_reduce(sum, fsdp::ReduceOp::kSum, {"loss", {}})->wait();
  return sum.item<double>() / fsdp::world_size();
}

void append(Series& series, const Step& step) {
  series.forward.push_back(step.times.forward);
  series.backward.push_back(step.times.backward);
  series.optimizer.push_back(step.times.optimizer);
  series.total.push_back(step.times.total());
  series.losses.push_back(round_to(mean_over_ranks(step.loss), 6));
}

Json byte_class(int64_t current, int64_t peak) { return {{"current", current}, {"peak", peak}}; }

// Returns the megabytes of one step.
Json megabytes(const fsdp::Traffic::Link& link, int64_t steps) {
  const auto of_a_step = [&](int64_t bytes) {
    return round_to(static_cast<double>(bytes) / 1e6 / static_cast<double>(steps), 3);
  };
  return {{"sent", of_a_step(link.sent)}, {"received", of_a_step(link.received)}};
}

/// Formats the result. `traffic` is that of the steps after the warm-up.
Json result(const StepArguments& arguments, c10::Device device, const Series& series, const Memory& memory,
            const fsdp::Traffic& traffic) {
  const double total = median_after_warm_up(series.total);
  const auto tokens =
      static_cast<double>(fsdp::world_size() / arguments.pipeline.ranks * arguments.batch * arguments.seq);
  const auto& [mb, now, last] = memory;
  Json json;
  json["engine"] = arguments.engine;
  json["world"] = fsdp::world_size();
  json["backend"] = arguments.backend;
  json["reshard"] = arguments.reshard;
  json["strategy"] = arguments.sharding.strategy;
  json["mesh"] = arguments.sharding.mesh;
  if (arguments.pipeline.ranks > 1)
    json["pipe"] = {{"ranks", arguments.pipeline.ranks},
                    {"micro_batches", arguments.pipeline.micro_batches},
                    {"schedule", arguments.pipeline.schedule}};
  json["precision"] = arguments.precision;
  json["ms_per_step"] = round_to(total, 1);
  json["tokens_per_s"] = static_cast<int64_t>(std::llround(tokens / total * 1e3));
  json[device.is_cpu() ? "pss_mb" : "device_mb"] = static_cast<int64_t>(std::llround(mb));
  json["forward_ms"] = round_to(median_after_warm_up(series.forward), 1);
  json["backward_ms"] = round_to(median_after_warm_up(series.backward), 1);
  json["optimizer_ms"] = round_to(median_after_warm_up(series.optimizer), 1);
  json["bytes"] = {{"rows", byte_class(now.rows.current, last.rows.peak)},
                   {"whole", byte_class(now.whole.current, last.whole.peak)},
                   {"gradient", byte_class(now.gradient.current, last.gradient.peak)},
                   {"optimizer", byte_class(now.optimizer.current, last.optimizer.peak)},
                   {"activation", byte_class(now.activation.current, last.activation.peak)}};
  json["gathers_per_step"] = static_cast<double>(last.gathers) / static_cast<double>(arguments.steps);
  json["reductions_per_step"] = static_cast<double>(last.reductions) / static_cast<double>(arguments.steps);
  const int64_t steps = std::max<int64_t>(1, arguments.steps - kWarmUpSteps);
  json["rank_0_mb_per_step"] = {{"between_hosts", megabytes(traffic.between_hosts, steps)},
                                {"inside_host", megabytes(traffic.inside_host, steps)}};
  json["losses"] = series.losses;
  return json;
}

}  // namespace

void run_step(const StepArguments& arguments) {
  const c10::Device device = join_ranks(arguments.backend, arguments.world);
  Trainee trainee = make_trainee(arguments, device);
  Series series;
  Memory memory;
  fsdp::Traffic before;
  for (int64_t step = 0; step < arguments.steps; ++step) {
    if (step == kWarmUpSteps) {
      forget_device_peak(device);
      before = fsdp::traffic();
    }
    append(series, train_step(trainee, batch_of(arguments, step, device), [&] {
             if (step == kWarmUpSteps) memory = {device.is_cpu() ? pss_mb() : 0, trainee.stats(), {}};
           }));
  }
  if (!device.is_cpu()) memory.mb = device_peak_mb(device);
  memory.last = trainee.stats();
  const auto traffic = fsdp::traffic() - before;
  if (fsdp::rank() == 0) std::cout << result(arguments, device, series, memory, traffic).dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
