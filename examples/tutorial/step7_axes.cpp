// Step 7 of docs/tutorial.md trains the model of step 0 on a mesh with four axes and 8 ranks.
//
//     fsdprun --nproc_per_node 8 example_tutorial_step7_axes
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

#include "counting.h"

// The first layer: it embeds numbers and their positions in the whole sequence.
struct LookUpImpl : torch::nn::Module {
  explicit LookUpImpl(const tutorial::Net& net) {
    register_module("numbers", numbers = net->numbers);
    register_module("places", places = net->places);
  }
  torch::Tensor forward(const torch::Tensor& ids) { return numbers(ids) + places(fsdp::positions(ids.size(1))); }
  torch::nn::Embedding numbers{nullptr}, places{nullptr};
};
TORCH_MODULE(LookUp);

int main() {
  fsdp::init_process_group();
  fsdp::TrainerOptions options{.seed = 1, .epochs = 4, .max_grad_norm = 1.0};
  options.mesh_shape = {2, 2, 2, 1};
  options.mesh_dim_names = {"pipe", "data", "sequence", "tensor"};
  options.sharding.auto_wrap_policy = fsdp::module_wrap_policy<tutorial::BlockImpl>();
  fsdp::Trainer trainer(options);
  const auto& mesh = trainer.mesh();
  const auto pipe = mesh.process_group("pipe");

  tutorial::Net net;
  torch::nn::Sequential layers((LookUp(net)));
  for (const auto& block : *net->blocks) layers->push_back(block);
  layers->push_back(net->norm);
  layers->push_back(net->head);
  auto model = trainer.shard(fsdp::split_stages(layers, 2)[static_cast<size_t>(pipe->rank())]);
  fsdp::Pipeline pipeline({fsdp::PipelineStage(model)}, fsdp::one_forward_one_backward_schedule(2, 4), pipe);
  trainer.set_pipeline(pipeline);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const auto data = [&](int64_t /*epoch*/) {
    const auto sequences = tutorial::Sequences().map(torch::data::transforms::Stack<>());
    const fsdp::data::DistributedSampler sampler(*sequences.size(),
                                                 {.shuffle = false, .process_group = mesh.process_group("data")});
    return torch::data::make_data_loader(sequences, sampler, /*batch_size=*/16 / mesh.size("data"));
  };
  const auto step = [&](auto& /*model*/, auto& batch, double weight) {
    const fsdp::SequenceParallel sequence(mesh.process_group("sequence"));
    const auto mean_loss = [&](const torch::Tensor& scores, const torch::Tensor& targets) {
      const auto loss = tutorial::loss_of(scores, targets);  // All ranks have equally many tokens.
      return weight * fsdp::sequence_mean(loss, torch::ones_like(loss));
    };
    return pipeline.step(sequence.shard(batch.data, 1), sequence.shard(batch.target, 1), mean_loss) / weight;
  };

  double sum = 0;
  int64_t steps = 0;
  const auto add = [&](const fsdp::StepReport& report) {
    sum += report.mean_loss();
    ++steps;
  };
  const auto print = [&](const fsdp::TrainingPlace& place) {
    if (fsdp::rank() == 0) std::cout << "epoch " << place.epoch + 1 << "  loss " << sum / steps << std::endl;
    sum = steps = 0;
  };
  trainer.add({.on_step_end = add, .on_epoch_end = print});
  trainer.fit(model, optimizer, data, step);
  fsdp::destroy_process_group();
}
