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

// So small that arithmetic hides nothing of what the library does; at most 8 ranks have a row.
constexpr int64_t kElements = 8;
constexpr int kWarmUps = 2, kRepetitions = 5;

struct UnitImpl : torch::nn::Module {
  UnitImpl() : weight(register_parameter("w", torch::ones({kElements}))) {}
  torch::Tensor weight;
};
TORCH_MODULE(Unit);

struct ManyUnitsImpl : torch::nn::Module {
  ManyUnitsImpl(ScalingUnit unit, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (unit == ScalingUnit::kParameter) {
        weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({kElements})));
        continue;
      }
      const bool is_inner = unit == ScalingUnit::kNestedGroup && i > 0;
      const Unit made;
      if (is_inner)
        units.back()->register_module("u", made);
      else
        register_module("u" + std::to_string(i), made);
      units.push_back(made);
      weights.push_back(made->weight);
    }
  }
  // One by one: a chain of modules would end by as many calls inside one another.
  ~ManyUnitsImpl() override {
    for (auto& unit : units)
      if (!unit->children().empty()) unit->unregister_module("u");
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& weight : weights) x = x * weight;
    return x.sum();
  }

  std::vector<Unit> units;
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(ManyUnits);

double microseconds(const std::function<void()>& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

/// Of all repetitions, in microseconds.
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
  const auto x = torch::ones({kElements});
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
