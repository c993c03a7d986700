#include <ATen/Functions.h>
#include <fsdp/collectives.h>
#include <fsdp/pipeline.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/current_stream.h"
#include "comm/core/text.h"
#include "pipeline/run.h"

namespace fsdp {
namespace {

// Returns the slices to measure for sequences of `length` tokens: some of different lengths at the beginning of the
// sequence, and some after other tokens. Lengths and positions are multiples of `granularity`, except for the whole
// sequence.
std::vector<SliceTime> slices_to_measure(int64_t length, int64_t granularity) {
  std::vector<SliceTime> slices;
  const auto add = [&](int64_t tokens, int64_t before) {
    const auto is_known = [&](const SliceTime& known) { return known.length == tokens && known.before == before; };
    if (tokens > 0 && tokens + before <= length && std::ranges::none_of(slices, is_known))
      slices.push_back({tokens, before});
  };
  const auto part = [&](int64_t eighths) { return length * eighths / 8 / granularity * granularity; };
  for (const int64_t tokens : {granularity, part(1), part(2), part(4), length}) add(tokens, 0);
  for (const auto& [tokens, before] :
       {std::pair(part(1), part(1)), std::pair(part(4), part(1)), std::pair(part(2), part(2)),
        std::pair(part(1), part(4)), std::pair(part(4), part(4)), std::pair(part(1), part(7)),
        std::pair(granularity, part(4))})
    add(tokens, before);
  return slices;
}

// While a TimedStages exists, each call of a stage of the plan appends its duration to `seconds`. The destructor
// restores the plan.
class TimedStages {
 public:
  TimedStages(pipeline::Plan& plan, std::vector<double>& seconds) : plan_(plan), before_(plan) {
    const auto device = plan.group->device();
    const auto now = [device] {
      if (!device.is_cpu()) current_stream(device).synchronize();
      return std::chrono::steady_clock::now();
    };
    for (auto& stage : plan.stages) {
      const auto timed = [stage, now, &seconds](const at::Tensor& input) {
        const auto begin = now();
        auto output = stage(input);
        seconds.push_back(std::chrono::duration<double>(now() - begin).count());
        return output;
      };
      stage = stage.group() ? PipelineStage(timed, *stage.group()) : PipelineStage(timed);
    }
  }
  ~TimedStages() { plan_ = std::move(before_); }
  TimedStages(const TimedStages&) = delete;
  TimedStages& operator=(const TimedStages&) = delete;

 private:
  pipeline::Plan& plan_;
  pipeline::Plan before_;
};

}  // namespace

SliceTuning Pipeline::tune(const at::Tensor& micro_batch, const TuneOptions& options) {
  auto& plan = *plan_;
  const auto where = plan.where("tune");
  const auto schedule = plan.schedule;
  require(schedule.chunks == 1, where, "expected one stage on each rank, found ", schedule.chunks,
          ". Slices can be tuned only for schedules with one stage on each rank");
  require(options.granularity >= 1 && options.rounds >= 1, where,
          "expected a granularity and a number of rounds of at least 1, found ", options.granularity, " and ",
          options.rounds);
  const auto told =
      at::tensor(plan.is_first() && micro_batch.defined() && micro_batch.dim() > 1 ? micro_batch.size(1) : 0,
                 at::TensorOptions(at::kLong).device(plan.group->device()));
  const auto length = broadcast(told, schedule.rank_of(0), plan.group).item<int64_t>();
  require(length > 0, where, "expected inputs with tokens along dim 1 on the rank of the first stage, found none");

  auto slices = slices_to_measure(length, std::min(options.granularity, length));
  std::vector<double> measured, seconds;
  {
    const TimedStages timed(plan, seconds);
    for (const auto& [tokens, before, unused] : slices) {
      set_schedule(before == 0 ? gpipe_schedule(schedule.ranks, 1)
                               : terapipe_schedule(schedule.ranks, 1, {before, tokens}));
      const auto inputs = plan.is_first() ? micro_batch.narrow(1, 0, before + tokens) : at::Tensor();
      forward(inputs);  // not measured; this run learns the sizes and checks that the stages can run in slices
      double least = std::numeric_limits<double>::infinity();
      for (int round = 0; round < options.rounds; ++round) {
        seconds.clear();
        forward(inputs);
        least = std::min(least, seconds.back());
      }
      measured.push_back(least);
    }
  }
  const auto& all_ranks = options.all_ranks ? options.all_ranks : plan.group;
  const auto gathered = all_gather(at::tensor(measured).to(plan.group->device()), all_ranks).cpu();
  SliceTuning tuning{.micro_batches = schedule.micro_batches};
  std::vector<FittedSliceCost> costs;
  for (int64_t rank = 0; rank < gathered.size(0); ++rank) {
    for (size_t i = 0; i < slices.size(); ++i)
      slices[i].seconds = gathered[rank][static_cast<int64_t>(i)].item<double>();
    costs.push_back(fit_slice_cost(slices));
    tuning.largest_error = std::max(tuning.largest_error, costs.back().largest_error);
  }
  const auto slowest = [&](int64_t tokens, int64_t before) {
    double most = 0;
    for (const auto& cost : costs) most = std::max(most, cost(tokens, before));
    return most;
  };
  tuning.plan = plan_slices(length, schedule.ranks, slowest, options.granularity, 0, schedule.micro_batches);
  tuning.whole_seconds = (schedule.micro_batches + schedule.ranks - 1) * slowest(length, 0);
  // All ranks must have the same plan, but the plans that they compute can differ by rounding. They all use rank 0's.
  auto lengths = at::zeros({length}, at::kLong);
  for (size_t i = 0; i < tuning.plan.lengths.size(); ++i) lengths[static_cast<int64_t>(i)] = tuning.plan.lengths[i];
  lengths = broadcast(lengths.to(plan.group->device()), 0, all_ranks).cpu();
  tuning.plan.lengths.clear();
  for (const auto tokens : std::span(lengths.const_data_ptr<int64_t>(), static_cast<size_t>(length)))
    if (tokens > 0) tuning.plan.lengths.push_back(tokens);
  return tuning;
}

std::ostream& operator<<(std::ostream& out, const SliceTuning& tuning) {
  const auto& lengths = tuning.plan.lengths;
  TextWriter text;
  text.precision(3);
  text << lengths.size() << (lengths.size() == 1 ? " slice of " : " slices of ") << str_join(", ", lengths)
       << " tokens: forward of " << tuning.micro_batches
       << (tuning.micro_batches == 1 ? " micro-batch" : " micro-batches") << " should take "
       << 1e3 * tuning.plan.seconds << " ms";
  if (lengths.size() > 1)
    text << ", and " << 1e3 * tuning.whole_seconds << " ms with whole sequences";
  else
    text << ". Slicing does not pay";
  text << " (the fitted costs differ from measurements by at most " << 100 * tuning.largest_error << " %)";
  return out << text.str();
}

}  // namespace fsdp
