// Step 2 of docs/tutorial.md shards parameters, gradients and optimizer state as one group (FSDP).
//
//     fsdprun --nproc_per_node 2 example_tutorial_step2_sharded
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

#include "counting.h"

int main() {
  fsdp::init_process_group();
  torch::manual_seed(1);
  tutorial::Net net;
  auto model = fsdp::fully_shard(net);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const auto data = tutorial::Sequences().map(torch::data::transforms::Stack<>());
  const fsdp::data::DistributedSampler sampler(*data.size(), {.shuffle = false});

  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
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
  }
  if (fsdp::rank() == 0) std::cout << fsdp::memory_report(model, optimizer);
  fsdp::destroy_process_group();
}
