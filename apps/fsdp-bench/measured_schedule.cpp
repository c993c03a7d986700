#include <fsdp/pipeline.h>
#include <fsdp/process_group.h>
#include <fsdp/spawn.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>
#include <vector>

#include "frame/moment.h"
#include "join_ranks.h"
#include "schedule.h"
#include "statistics.h"

namespace bench {
namespace {

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Sleeps in forward and in backward instead of computing. Its output equals its input.
struct Sleep : torch::autograd::Function<Sleep> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& /*weight*/, double forward, double backward) {
    context->saved_data["seconds"] = backward;
    sleep_for(forward);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    sleep_for(context->saved_data["seconds"].toDouble());
    return {gradients[0], at::zeros({1}), {}, {}};
  }
};

// Returns the seconds of a step: a rank's forwards and backwards of all micro-batches, plus the time that the last rank
// waits at both ends. During this wait, each other rank runs one part of a micro-batch: one of the rank's stages, or
// the longest slice.
double seconds_by_formula(const fsdp::PipelineSchedule& schedule, double forward, double backward) {
  const auto& slices = schedule.slice_lengths;
  double part = 1.0 / schedule.chunks;
  if (!slices.empty())
    part = static_cast<double>(std::ranges::max(slices)) /
           static_cast<double>(std::accumulate(slices.begin(), slices.end(), int64_t{0}));
  return (schedule.micro_batches + (schedule.ranks - 1) * part) * (forward + backward);
}

void measure_as_rank(const ScheduleArguments& arguments, const fsdp::PipelineSchedule& schedule) {
  join_ranks("auto", arguments.ranks);
  const auto& slices = schedule.slice_lengths;
  const int64_t tokens = slices.empty() ? 1 : std::accumulate(slices.begin(), slices.end(), int64_t{0});
  const double forward = arguments.measure * 1e-3, backward = arguments.backward * forward;
  const auto weight = at::zeros({1}).requires_grad_();
  const auto run = [&](const at::Tensor& x) -> at::Tensor {
    const double share = static_cast<double>(x.size(1)) / static_cast<double>(tokens) / schedule.chunks;
    return Sleep::apply(x, weight, share * forward, share * backward);
  };
  fsdp::Pipeline pipeline(std::vector(static_cast<size_t>(schedule.chunks), fsdp::PipelineStage(run)), schedule);
  const auto batch = at::zeros({schedule.micro_batches, tokens, 1});
  const auto step = [&] {
    pipeline.step(batch, batch, [](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
  };
  step();  // The first step exchanges the sizes of activations.
  std::vector<double> seconds;
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    fsdp::default_process_group()->communicator().barrier({"round", {}})->wait();
    const frame::Moment begin(c10::kCPU);
    step();
    seconds.push_back(of_slowest_rank(frame::Moment(c10::kCPU).seconds_since(begin)));
  }
  if (fsdp::rank() == 0) {
    const double measured = median(seconds), expected = seconds_by_formula(schedule, forward, backward);
    if (arguments.json)
      std::cout << nlohmann::ordered_json{{"name", schedule.name},
                                          {"ranks", schedule.ranks},
                                          {"formula_s", expected},
                                          {"measured_s", measured},
                                          {"ratio", measured / expected}}
                       .dump()
                << std::endl;
    else
      std::cout << std::fixed << std::setprecision(3) << schedule.name << " on " << schedule.ranks
                << " ranks: a step took " << measured << " s, and the formula gives " << expected << " s: a ratio of "
                << measured / expected << std::endl;
  }
  fsdp::destroy_process_group();
}

}  // namespace

void measure_schedule(const ScheduleArguments& arguments) {
  const auto schedule = frame::make_schedule(arguments.schedule, arguments.ranks, arguments.micro_batches,
                                             arguments.chunks, arguments.slices);
  fsdp::spawn([&](int) { measure_as_rank(arguments, schedule); }, arguments.ranks);
}

}  // namespace bench
