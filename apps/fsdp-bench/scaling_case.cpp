#include "scaling_case.h"

#include <fsdp/fully_shard.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "statistics.h"

namespace bench {
namespace {

constexpr int kWarmUps = 2, kRepetitions = 5;

double microseconds(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// Times of all repetitions in microseconds.
struct Samples {
  std::vector<double> shard, step, optimizer;
};

void time_model(ScalingUnit unit, int64_t count, bool sharded, Samples& samples) {
  ManyUnits model(unit, count);
  std::optional<fsdp::Sharded<ManyUnits>> handle;
  fsdp::FullyShardOptions options;
  if (unit != ScalingUnit::kParameter) options.auto_wrap_policy = fsdp::module_wrap_policy<UnitImpl>();
  samples.shard.push_back(microseconds([&] {
    if (sharded) handle.emplace(fsdp::fully_shard(model, options));
  }));
  torch::optim::SGD optimizer(model->weights, 1e-3);
  const auto x = torch::ones({kUnitElements});
  for (int i = 0; i < kWarmUps + kRepetitions; ++i) {
    optimizer.zero_grad();
    const double step = microseconds([&] { (handle ? (*handle)(x) : model(x)).backward(); });
    const double update = microseconds([&] { optimizer.step(); });
    if (i < kWarmUps) continue;
    samples.step.push_back(step);
    samples.optimizer.push_back(update);
  }
}

}  // namespace

ScalingTimes time_units(ScalingUnit unit, int64_t count, bool sharded) {
  Samples samples;
  const int64_t models = std::clamp<int64_t>(1000 / count, 1, 9);
  for (int64_t i = 0; i < models; ++i) time_model(unit, count, sharded, samples);
  const auto units = static_cast<double>(count);
  return {median(samples.shard) / units, median(samples.step) / units, median(samples.optimizer) / units};
}

}  // namespace bench
