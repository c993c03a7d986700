#include "trainee.h"

#include <fsdp/activation_checkpoint.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/process_group.h>
#include <torch/csrc/utils/tensor_flatten.h>
#include <torch/utils.h>

#include <memory>
#include <utility>

#include "models/gpt.h"
#include "models/stages.h"

namespace bench {
namespace {

fsdp::FullyShardOptions sharding(const StepArguments& arguments) {
  auto options = frame::sharding_options(arguments.sharding);
  const auto& reshard = arguments.reshard;
  if (reshard == "always") options.reshard_after_forward = fsdp::Reshard::always();
  if (reshard == "never") options.reshard_after_forward = fsdp::Reshard::never();
  if (arguments.within > 1) options.reshard_after_forward = fsdp::Reshard::within(arguments.within);
  if (arguments.precision != "fp32")
    options.mp_policy = fsdp::MixedPrecisionPolicy{
        .param_dtype = arguments.precision == "bf16" ? torch::kBFloat16 : torch::kHalf, .output_dtype = torch::kFloat};
  if (!arguments.disk_folder.empty()) options.disk_policy = fsdp::DiskOffloadPolicy{.folder = arguments.disk_folder};
  if (arguments.prefetched_bytes > 0) options.max_prefetched_bytes = arguments.prefetched_bytes;
  return options;
}

// The mesh, the schedule and this rank's blocks of a pipeline.
struct Stages {
  fsdp::DeviceMesh mesh;
  fsdp::PipelineSchedule schedule;
  models::OwnBlocks own;  // blocks of this rank
};

std::optional<Stages> make_stages(const StepArguments& arguments) {
  const auto& [ranks, micro_batches, name, chunks] = arguments.pipeline;
  if (ranks == 1) return std::nullopt;
  auto mesh = fsdp::init_device_mesh({ranks, fsdp::world_size() / ranks}, {"pipe", "data"});
  auto schedule = frame::make_schedule(name, ranks, micro_batches, chunks);
  auto own = models::blocks_of_rank(arguments.layers, schedule, mesh.coordinate("pipe"));
  return Stages{std::move(mesh), std::move(schedule), std::move(own)};
}

std::shared_ptr<fsdp::optim::AdamW> make_optimizer(const std::vector<at::Tensor>& parameters) {
  return std::make_shared<fsdp::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

models::RunPart block_runner(const StepArguments& arguments) {
  if (!arguments.activations.is_on() && !arguments.keeps_products) return {};
  auto options = frame::checkpoint_options(arguments.activations);
  if (arguments.keeps_products) options.keeps_results = fsdp::is_product;
  return [options](const models::Part& part, const at::Tensor& x) {
    return fsdp::activation_checkpoint(options, part, x);
  };
}

// Shards the model. If `stages` is set, `gpt` has only the blocks of this rank's stages.
Trainee make_sharded(models::GPT gpt, const StepArguments& arguments, const std::optional<Stages>& stages) {
  auto options = sharding(arguments);
  if (stages) options.mesh = stages->mesh["data"];
  for (auto& block : *gpt->blocks)
    if (!block->parameters().empty()) fsdp::fully_shard(*block, options);
  if (arguments.groups_head && gpt->head) {
    auto options_of_head = options;
    if (arguments.reshard == "default" && arguments.within == 1)
      options_of_head.reshard_after_forward = fsdp::Reshard::never();
    fsdp::fully_shard(*gpt->head, options_of_head);
  }
  auto model = std::make_shared<fsdp::Sharded<models::GPT>>(fsdp::fully_shard(gpt, options));
  Trainee trainee{.forward = [model](const at::Tensor& ids) { return (*model)(ids); },
                  .optimizer = make_optimizer(model->parameters()),
                  .stats = [model] { return model->stats(); },
                  .group = *model};
  if (stages) {
    auto pipeline = std::make_shared<fsdp::Pipeline>(models::stages_of(gpt.ptr(), *model, stages->own),
                                                     stages->schedule, stages->mesh.process_group("pipe"));
    trainee.run_stages = [pipeline, loss = models::loss_of(gpt.ptr(), *model)](const at::Tensor& inputs,
                                                                               const at::Tensor& targets) {
      return pipeline->step(inputs, targets, loss);
    };
  }
  return trainee;
}

Trainee make_unsharded(models::GPT gpt) {
  auto peak = std::make_shared<int64_t>(0);
  const auto optimizer = make_optimizer(gpt->parameters());
  const auto measure = [gpt, peak, optimizer] {
    fsdp::GroupStats stats;
    for (const auto& parameter : gpt->parameters()) {
      stats.parameter_numel += parameter.numel();
      stats.whole.current += static_cast<int64_t>(parameter.nbytes());
      if (parameter.grad().defined()) stats.gradient.current += static_cast<int64_t>(parameter.grad().nbytes());
    }
    *peak = std::max(*peak, stats.gradient.current);
    stats.whole.peak = stats.whole.current;
    stats.gradient.peak = *peak;
    stats.optimizer.current = stats.optimizer.peak = optimizer->state_bytes();
    return stats;
  };
  return {
      .forward = [gpt](const at::Tensor& ids) mutable { return gpt(ids); }, .optimizer = optimizer, .stats = measure};
}

// Averages all gradients over the ranks in one all-reduce after backward, so none of it overlaps with backward.
void average_gradients(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
  auto flat = torch::utils::flatten_dense_tensors(gradients);
  const auto& ranks = fsdp::default_process_group();
  ranks->communicator().all_reduce(flat, fsdp::ReduceOp::kSum, {"all gradients", {}})->wait();
  flat.div_(ranks->world_size());
  const auto means = torch::utils::unflatten_dense_tensors(flat, gradients);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i].copy_(means[i]);
}

Trainee make_naive(models::GPT gpt) {
  auto trainee = make_unsharded(gpt);
  trainee.after_backward = [parameters = gpt->parameters()] { average_gradients(parameters); };
  return trainee;
}

}  // namespace

Trainee make_trainee(const StepArguments& arguments, c10::Device device) {
  torch::manual_seed(0);
  const auto stages = make_stages(arguments);
  models::GPT gpt(models::GPTConfig{.vocab = arguments.vocab,
                                    .seq = arguments.seq,
                                    .dim = arguments.dim,
                                    .layers = arguments.layers,
                                    .heads = arguments.heads},
                  nullptr, stages ? stages->own : models::OwnBlocks());
  gpt->to(device);
  gpt->run_block = block_runner(arguments);
  if (arguments.engine == "fsdp") return make_sharded(std::move(gpt), arguments, stages);
  return arguments.engine == "naive" ? make_naive(std::move(gpt)) : make_unsharded(std::move(gpt));
}

}  // namespace bench
