// Step 4 of docs/tutorial.md saves a checkpoint after each epoch, resumes from it, and writes one file for other
// programs.
//
//     fsdprun --nproc_per_node 2 example_tutorial_step4_checkpoint [FOLDER [EPOCHS]]
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "counting.h"

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "counting";
  const int64_t epochs = argc > 2 ? std::stol(argv[2]) : 4;
  fsdp::init_process_group();
  torch::manual_seed(1);
  tutorial::Net net;
  fsdp::FullyShardOptions options;
  for (const auto& block : net->blocks->children()) fsdp::fully_shard(*block, options);
  auto model = fsdp::fully_shard(net, options);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const auto data = tutorial::Sequences().map(torch::data::transforms::Stack<>());
  const fsdp::data::DistributedSampler sampler(*data.size(), {.shuffle = false});

  const int64_t done = fsdp::load_checkpoint(folder, model, &optimizer, {.if_any = true}).step;
  for (int64_t epoch = done + 1; epoch <= epochs; ++epoch) {
    double sum = 0;
    int64_t steps = 0;
    const auto loader = torch::data::make_data_loader(data, sampler, /*batch_size=*/16 / fsdp::world_size());
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto loss = tutorial::loss_of(model(batch.data), batch.target);
      loss.backward();
      fsdp::clip_grad_norm_(model, 1.0);
      optimizer.step();
      sum += loss.item<double>();
      ++steps;
    }
    const double mean = fsdp::mean(sum / steps);
    if (fsdp::rank() == 0) std::cout << "epoch " << epoch << "  loss " << mean << std::endl;
    fsdp::save_checkpoint(folder, model, &optimizer, {.step = epoch, .keep = 2});
  }
  fsdp::save_safetensors(folder + ".safetensors", model);
  if (fsdp::rank() == 0) std::cout << fsdp::memory_report(model, optimizer);
  fsdp::destroy_process_group();
}
