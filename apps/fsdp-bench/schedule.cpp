#include "schedule.h"

#include <fsdp/pipeline_schedule.h>

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "frame/pipeline_flags.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const fsdp::PipelineSchedule& schedule, const fsdp::PipelineTimes& times) {
  Json ranks = Json::array();
  for (size_t rank = 0; rank < times.spans.size(); ++rank) {
    Json actions = Json::array();
    for (size_t i = 0; i < times.spans[rank].size(); ++i) {
      const auto& action = schedule.actions[rank][i];
      actions.push_back({{"name", action.name()},
                         {"kind", action.kind == fsdp::PipelineAction::Kind::kForward ? "forward" : "backward"},
                         {"stage", action.stage},
                         {"micro_batch", action.micro_batch},
                         {"slice", action.slice},
                         {"begin", times.spans[rank][i].begin},
                         {"end", times.spans[rank][i].end}});
    }
    ranks.push_back(std::move(actions));
  }
  return {{"name", schedule.name}, {"total", times.total}, {"bubble", times.bubble()}, {"ranks", std::move(ranks)}};
}

}  // namespace

void run_schedule(const ScheduleArguments& arguments) {
  const auto schedule = frame::make_schedule(arguments.schedule, arguments.ranks, arguments.micro_batches,
                                             arguments.chunks, arguments.slices);
  const auto& slices = schedule.slice_lengths;
  const double tokens = static_cast<double>(std::accumulate(slices.begin(), slices.end(), int64_t{0}));
  // The time of a slice is proportional to its tokens, and the time of a chunk to its share of the rank's layers.
  const auto duration = [&](const fsdp::PipelineAction& action) {
    const double share = slices.empty() ? 1 : static_cast<double>(slices[static_cast<size_t>(action.slice)]) / tokens;
    const bool is_forward = action.kind == fsdp::PipelineAction::Kind::kForward;
    return share * (is_forward ? 1 : arguments.backward) / schedule.chunks;
  };
  const auto times = fsdp::simulate(schedule, duration, arguments.transfer);
  if (arguments.json) {
    std::cout << json_of(schedule, times).dump() << std::endl;
    return;
  }
  // The text shows only the order of actions: each action takes one cell, however long it lasts.
  std::cout << fsdp::to_text(schedule, fsdp::simulate(schedule, [](const auto&) { return 1; })) << std::fixed
            << std::setprecision(1) << schedule.name << ": a step takes " << times.total
            << " times as long as a rank's forward, and ranks are idle for " << 100 * times.bubble()
            << " % of that time" << std::endl;
}

}  // namespace bench
