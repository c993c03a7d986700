#include "program_fuzz/stages.h"

#include <fsdp/fsdp.h>
#include <fsdp/pipeline.h>

#include <map>
#include <string>
#include <utility>

#include "program_fuzz/net.h"

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

PipelineSchedule schedule_of(int64_t seed, int ranks) {
  const auto micro_batches = static_cast<int>(1 + seed / 4 % 4);
  switch (seed % StagesPlan::kSchedules) {
    case 0:
      return gpipe_schedule(ranks, micro_batches);
    case 1:
      return one_forward_one_backward_schedule(ranks, micro_batches);
    case 2:
      return one_forward_one_backward_schedule(ranks, ranks * (1 + micro_batches % 2), /*chunks=*/2);
    default:
      return terapipe_schedule(ranks, micro_batches,
                               seed / 16 % 2 == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{1, 3, 1});
  }
}

Tensor loss_of_stages(const Tensor& output, const Tensor& target) { return (output - target).square().mean(); }

}  // namespace

Tensor StagesPlan::input(int64_t seed, int row, int step) const {
  return torch::sin(numbers_of({batch, kTokens, kWidth}) * (0.9 + 0.1 * static_cast<double>(seed)) + row + 3 * step);
}

StagesPlan stages_plan_of(const Program& program, const Statement& s) {
  const int ranks = ranks_of_axis(program, s);
  auto schedule = schedule_of(s.seed, ranks);
  const int layers = schedule.stages() + static_cast<int>(s.seed % 3);
  return {.ranks = ranks,
          .sharers = program.world_size / ranks,
          .schedule = schedule,
          .batch = schedule.micro_batches + s.seed % 3,
          .layers = layers,
          .frozen = s.flag ? static_cast<int>(s.seed % layers) : 0};
}

StageLayerImpl::StageLayerImpl(int place, bool is_frozen) {
  const auto values = [&](at::IntArrayRef sizes, int its) { return first_values(sizes, torch::kDouble, its); };
  inward = register_parameter("inward", values({3 * StagesPlan::kWidth, StagesPlan::kWidth}, 2 * place), !is_frozen);
  outward = register_parameter("outward", values({StagesPlan::kWidth, StagesPlan::kWidth}, 2 * place + 1), !is_frozen);
}

Tensor StageLayerImpl::forward(const Tensor& x) {
  const auto parts = torch::linear(x, inward).unflatten(2, {3, 1, StagesPlan::kWidth}).movedim(2, 0).transpose(2, 3);
  const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
  return x + torch::tanh(torch::linear(mixed.squeeze(1), outward));
}

torch::nn::Sequential layers_of(const StagesPlan& plan) {
  torch::nn::Sequential layers;
  for (int i = 0; i < plan.layers; ++i) layers->push_back(StageLayer(i, i < plan.frozen));
  return layers;
}

std::vector<Tensor> trained_whole(const Program& program, const Statement& s, int rank) {
  const auto plan = stages_plan_of(program, s);
  auto model = layers_of(plan);
  torch::optim::SGD optimizer(model->parameters(), kStageRate);
  std::vector<Tensor> results;
  for (int step = 0; step < kStageSteps; ++step) {
    optimizer.zero_grad();
    for (int row = 0; row < plan.sharers; ++row) {
      const auto input = plan.input(s.seed, row, step);
      const auto loss = loss_of_stages(model->forward(input), input.roll(1, 0));
      (loss / plan.sharers).backward();
      if (row == rank % plan.sharers) results.push_back(loss.detach());
    }
    optimizer.step();
  }
  const auto stages = split_stages(model, plan.schedule.stages());
  for (int stage = rank / plan.sharers; stage < plan.schedule.stages(); stage += plan.ranks)
    for (const auto& parameter : stages[static_cast<size_t>(stage)]->parameters())
      results.push_back(parameter.detach());
  return results;
}

std::vector<Tensor> trained_as_stages(const Program& program, const Statement& s, const DeviceMesh& mesh) {
  const auto plan = stages_plan_of(program, s);
  const auto pipe = mesh.process_group("replicate");
  const int row = mesh.coordinate("shard");
  const auto all = split_stages(layers_of(plan), plan.schedule.stages());
  std::vector<PipelineStage> stages;
  std::vector<Tensor> parameters;
  for (int stage = pipe->rank(); stage < plan.schedule.stages(); stage += plan.ranks) {
    const auto& own = all[static_cast<size_t>(stage)];
    FullyShardOptions options;
    options.mesh = mesh["shard"];
    stages.push_back(plan.sharers > 1 ? PipelineStage(fully_shard(own, options)) : PipelineStage(own));
    for (const auto& parameter : own->parameters()) parameters.push_back(parameter);
  }
  torch::optim::SGD optimizer(parameters, kStageRate);
  Pipeline pipeline(std::move(stages), plan.schedule, pipe);
  std::vector<Tensor> results;
  for (int step = 0; step < kStageSteps; ++step) {
    optimizer.zero_grad();
    const auto input = plan.input(s.seed, row, step);
    results.push_back(pipeline.step(input, input.roll(1, 0), loss_of_stages));
    optimizer.step();
  }
  for (const auto& parameter : parameters)
    results.push_back(plan.sharers > 1 ? full_tensor(parameter) : parameter.detach());
  return results;
}

}  // namespace fsdp::test::fuzz
