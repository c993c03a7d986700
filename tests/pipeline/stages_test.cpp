// Tests that stages keep a model's deferred values and its lower precision.

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>

#include <map>

#include "pipeline/stages.h"
#include "support/counted_memory.h"

namespace fsdp::test {
namespace {

constexpr int64_t kWide = 256, kLayers = 6;

torch::nn::Sequential wide_model() {
  torch::nn::Sequential model;
  for (int64_t layer = 0; layer < kLayers; ++layer) model->push_back(torch::nn::Linear(kWide, kWide));
  return model;
}

TEST(PipelineDeferredInit, GivesMemoryToThisRanksStagesAloneAndTheValuesOfTheWholeModel) {
  auto expected = build_alike(wide_model);
  const auto all = expected->named_parameters();
  const auto input = at::ones({4, kWide});
  const auto output = expected->forward(input).detach();
  constexpr int64_t kLayerBytes = kWide * (kWide + 1) * static_cast<int64_t>(sizeof(float));
  for (const int data : {1, 2})
    run_thread_ranks(3 * data, [&](int) {
      const auto mesh = init_device_mesh({data, 3}, {"data", "pipe"});
      const auto pipe = mesh.process_group("pipe");
      const CountedMemory memory;
      const auto model = build_alike([] { return deferred_init(wide_model); });
      barrier();  // computing values draws from the generator that threads share
      auto layers = split_stages(model, 3)[static_cast<size_t>(pipe->rank())];
      std::vector<PipelineStage> stages;
      if (data == 1) {
        materialize(*layers);
        stages.emplace_back(layers);
        EXPECT_LT(memory.counts->now, 2 * kLayerBytes + kLayerBytes / 2);
        EXPECT_LT(memory.counts->peak, 4 * kLayerBytes);
      } else {
        const auto sharded = fully_shard(layers, {.mesh = mesh["data"]});
        EXPECT_EQ(sharded.stats().parameter_numel, 2 * kWide * (kWide + 1));
        EXPECT_LT(sharded.stats().rows.peak, kLayerBytes + kLayerBytes / 2);
        EXPECT_LT(memory.counts->now, kLayerBytes + kLayerBytes / 2);
        EXPECT_LT(memory.counts->peak, 3 * kLayerBytes);
        stages.emplace_back(sharded);
      }
      for (const auto& parameter : layers->named_parameters())
        EXPECT_TRUE(at::equal(full_tensor(parameter.value()), all[parameter.key()])) << parameter.key();
      Pipeline pipeline(std::move(stages), gpipe_schedule(3, 2), pipe);
      const auto found = pipeline.forward(input);
      if (pipe->rank() == 2) EXPECT_LT(relative_difference(output, found), 1e-5);
    });
}

using Gradients = std::map<std::string, at::Tensor>;

void expect_gradients(const Gradients& expected, const torch::nn::Module& stage) {
  for (const auto& parameter : stage.named_parameters()) {
    const auto found = full_grad(parameter.value());
    EXPECT_TRUE(at::equal(expected.at(parameter.key()), found)) << parameter.key();
  }
}

struct CpuAutocast {
  CpuAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
  }
  ~CpuAutocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

at::Tensor float_rows(int number) { return piped_rows(number).to(torch::kFloat); }

torch::nn::Sequential float_model() {
  auto model = piped_model();
  model->to(torch::kFloat);
  return model;
}

// Tensors that stages send each other have the dtype that autocast gave them.
TEST(PipelinePrecision, StagesUnderAutocastHaveTheGradientsOfTheWholeModelUnderIt) {
  Gradients expected;
  {
    auto model = build_alike(float_model);
    const CpuAutocast autocast;
    const auto targets = float_rows(1).chunk(4);
    for (size_t part = 0; const auto& rows : float_rows(0).chunk(4)) {
      const auto& target = targets[part++];
      (piped_loss(model->forward(rows), target).sum() * 0.25).backward();
    }
    for (const auto& parameter : model->named_parameters()) expected[parameter.key()] = parameter.value().grad();
  }
  run_thread_ranks(2, [&](int rank) {
    auto layers = split_stages(build_alike(float_model), 2)[static_cast<size_t>(rank)];
    Pipeline pipeline({PipelineStage(layers)}, one_forward_one_backward_schedule(2, 4));
    {
      const CpuAutocast autocast;
      pipeline.step(float_rows(0), float_rows(1), piped_loss);
    }
    expect_gradients(expected, *layers);
  });
}

TEST(PipelinePrecision, ShardedStagesOfLowerPrecisionHaveTheGradientsOfTheSameGroupsInOneModel) {
  const auto options = [](const DeviceMesh& data) {
    FullyShardOptions options{.mesh = data};
    options.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
    return options;
  };
  const auto rows_of = [](const DeviceMesh& data, int number) {
    return float_rows(number).chunk(2)[static_cast<size_t>(data.coordinate("data"))];
  };
  Gradients expected;
  run_thread_ranks(2, [&](int rank) {
    const auto data = init_device_mesh({2}, {"data"});
    auto layers = split_stages(build_alike(float_model), 2);
    auto first = fully_shard(layers[0], options(data)), second = fully_shard(layers[1], options(data));
    const auto targets = rows_of(data, 1).chunk(2);
    for (size_t part = 0; const auto& rows : rows_of(data, 0).chunk(2)) {
      for (const auto* stage : {&first, &second}) stage->set_requires_gradient_sync(part == 1);
      const auto& target = targets[part++];
      (piped_loss(second(first(rows)), target).sum() * 0.5).backward();
    }
    for (const auto& stage : layers)
      for (const auto& parameter : stage->named_parameters()) {
        const auto gradient = full_grad(parameter.value());
        if (rank == 0) expected[parameter.key()] = gradient;
      }
  });
  run_thread_ranks(4, [&](int) {
    const auto mesh = init_device_mesh({2, 2}, {"data", "pipe"});
    const auto pipe = mesh.process_group("pipe");
    auto layers = split_stages(build_alike(float_model), 2)[static_cast<size_t>(pipe->rank())];
    Pipeline pipeline({PipelineStage(fully_shard(layers, options(mesh["data"])))},
                      one_forward_one_backward_schedule(2, 2), pipe);
    pipeline.step(rows_of(mesh["data"], 0), rows_of(mesh["data"], 1), piped_loss);
    expect_gradients(expected, *layers);
  });
}

}  // namespace
}  // namespace fsdp::test
