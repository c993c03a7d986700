// Step 6 of docs/tutorial.md does the same as step 5 with options of a Trainer, which starts two ranks itself.
//
//     example_tutorial_step6_trainer [FOLDER [EPOCHS]]
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <string>
#include <utility>

#include "counting.h"

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "counting-trainer";
  fsdp::TrainerOptions options;
  options.devices = 2;
  options.seed = 1;
  options.epochs = argc > 2 ? std::stol(argv[2]) : 4;
  options.max_grad_norm = 1.0;
  options.sharding.auto_wrap_policy = fsdp::module_wrap_policy<tutorial::BlockImpl>();
  options.precision = fsdp::Precision::kBFloat16;
  options.activation_checkpointing = fsdp::activation_checkpointing_of<tutorial::BlockImpl>();
  options.save = {.folder = folder, .every = 32};
  options.resume = folder;
  fsdp::Trainer::run(options, [&](fsdp::Trainer& trainer) {
    auto model = trainer.shard(tutorial::Net());
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
    const auto data = [](int64_t /*epoch*/) {
      const auto sequences = tutorial::Sequences().map(torch::data::transforms::Stack<>());
      const fsdp::data::DistributedSampler sampler(*sequences.size(), {.shuffle = false});
      return torch::data::make_data_loader(sequences, sampler, /*batch_size=*/16 / fsdp::world_size());
    };
    const auto loss = [](auto& net, auto& batch) { return tutorial::loss_of(net(batch.data), batch.target); };

    double sum = 0;
    int64_t steps = 0;
    const auto add = [&](const fsdp::StepReport& report) {
      sum += report.loss.item<double>();
      ++steps;
    };
    const auto print = [&](const fsdp::TrainingPlace& place) {
      if (steps == 0) return;  // The run resumed at the end of an epoch.
      const double mean = fsdp::mean(std::exchange(sum, 0) / std::exchange(steps, 0));
      if (fsdp::rank() == 0) std::cout << "epoch " << place.epoch + 1 << "  loss " << mean << std::endl;
    };
    trainer.add({.on_step_end = add, .on_epoch_end = print});
    if (!trainer.fit(model, optimizer, data, loss)) return;  // a signal ended it
    fsdp::save_safetensors(folder + ".safetensors", model);
  });
}
