#include "overhead.h"

#include <ATen/record_function.h>
#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <array>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "frame/moment.h"
#include "join_ranks.h"
#include "many_units.h"
#include "statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kOverheadWarmUps = 3;

/// Microseconds per group, one value for each step. `step` is from the slowest rank, and the other times are from this
/// rank.
struct OverheadSeries {
  std::vector<double> forward, backward, optimizer, step;
};

class GroupsModel {
 public:
  GroupsModel(int64_t groups, bool is_sharded, c10::Device device)
      : groups_(groups), model_(ScalingUnit::kGroup, groups) {
    model_->to(device);
    fsdp::FullyShardOptions options;
    options.auto_wrap_policy = fsdp::module_wrap_policy<UnitImpl>();
    if (is_sharded) sharded_.emplace(fsdp::fully_shard(model_, options));
    optimizer_.emplace(model_->weights, 1e-3);
  }

  void take_step(const at::Tensor& x, bool is_counted) {
    fsdp::barrier();
    // Once a model is sharded, the library observes every backward of the process, so observers are off for the plain
    // model.
    const at::RecordFunctionGuard observers(/*is_enabled=*/sharded_.has_value());
    const frame::Moment start(x.device());
    optimizer_->zero_grad();
    const auto loss = sharded_ ? (*sharded_)(x) : model_(x);
    const frame::Moment forward_end(x.device());
    loss.backward();
    const frame::Moment backward_end(x.device());
    optimizer_->step();
    const frame::Moment end(x.device());
    const double slowest = of_slowest_rank(per_group(start, end));
    if (!is_counted) return;
    series.forward.push_back(per_group(start, forward_end));
    series.backward.push_back(per_group(forward_end, backward_end));
    series.optimizer.push_back(per_group(backward_end, end));
    series.step.push_back(slowest);
  }

  OverheadSeries series;

 private:
  double per_group(const frame::Moment& start, const frame::Moment& end) const {
    return end.seconds_since(start) * 1e6 / static_cast<double>(groups_);
  }

  int64_t groups_;
  ManyUnits model_;
  std::optional<fsdp::Sharded<ManyUnits>> sharded_;
  std::optional<torch::optim::SGD> optimizer_;
};

struct OverheadRow {
  int64_t groups;
  OverheadSeries sharded, plain;
  std::vector<double> overhead = {};  // one for each pair of steps
};

OverheadRow measure_overhead(const OverheadArguments& arguments, int64_t groups, c10::Device device) {
  GroupsModel sharded(groups, true, device), plain(groups, false, device);
  const auto x = torch::ones({kUnitElements}, device);
  for (int64_t step = -kOverheadWarmUps; step < arguments.steps; ++step) {
    const auto order = step % 2 == 0 ? std::array{&sharded, &plain} : std::array{&plain, &sharded};
    for (auto* model : order) model->take_step(x, step >= 0);
  }
  OverheadRow row{groups, std::move(sharded.series), std::move(plain.series)};
  for (size_t i = 0; i < row.sharded.step.size(); ++i) row.overhead.push_back(row.sharded.step[i] - row.plain.step[i]);
  return row;
}

Json overhead_json(const OverheadRow& row) {
  const auto spread = [](const std::vector<double>& values) {
    const auto [low, middle, high] = quartiles(values);
    return Json{{"median", round_to(middle, 3)}, {"quartiles", {round_to(low, 3), round_to(high, 3)}}};
  };
  const auto all = [&](const OverheadSeries& series) {
    return Json{{"forward", spread(series.forward)},
                {"backward", spread(series.backward)},
                {"optimizer", spread(series.optimizer)},
                {"step", spread(series.step)}};
  };
  return {{"groups", row.groups},
          {"sharded", all(row.sharded)},
          {"plain", all(row.plain)},
          {"overhead", spread(row.overhead)}};
}

void print_overhead_heading() {
  std::cout << "Medians in microseconds per group. The step, and its overhead compared with the plain model's step, "
               "also have quartiles.\n\n"
            << std::left << std::setw(8) << "groups" << std::setw(9) << "model" << std::right << std::setw(9)
            << "forward" << std::setw(10) << "backward" << std::setw(11) << "optimizer" << std::setw(28) << "step"
            << std::setw(28) << "overhead" << std::endl;
}

void print_spread(std::vector<double> values) {
  const auto [low, middle, high] = quartiles(std::move(values));
  std::cout << std::setw(10) << middle << " (" << std::setw(6) << low << " to " << std::setw(5) << high << ')';
}

void print_overhead(const OverheadRow& row) {
  std::cout << std::fixed << std::setprecision(2);
  for (const auto& [name, series] : {std::pair("sharded", &row.sharded), std::pair("plain", &row.plain)}) {
    std::cout << std::left << std::setw(8) << row.groups << std::setw(9) << name << std::right << std::setw(9)
              << median(series->forward) << std::setw(10) << median(series->backward) << std::setw(11)
              << median(series->optimizer);
    print_spread(series->step);
    if (series == &row.sharded) print_spread(row.overhead);
    std::cout << std::endl;
  }
}

}  // namespace

void run_overhead(const OverheadArguments& arguments) {
  const c10::Device device = join_ranks(arguments.backend, arguments.world);
  const bool prints = fsdp::rank() == 0;
  Json rows;
  if (prints && !arguments.json) print_overhead_heading();
  for (const int64_t groups : arguments.groups) {
    const auto row = measure_overhead(arguments, groups, device);
    if (prints && !arguments.json) print_overhead(row);
    rows.push_back(overhead_json(row));
  }
  if (prints && arguments.json)
    std::cout << Json{{"world", arguments.world}, {"backend", arguments.backend}, {"rows", rows}}.dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
