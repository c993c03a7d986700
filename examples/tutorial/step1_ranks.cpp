// Step 1 of docs/tutorial.md has several ranks. Each rank has its share of the data and a whole model (DDP).
//
//     fsdprun --nproc_per_node 2 example_tutorial_step1_ranks
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

#include "counting.h"

int main() {
  fsdp::init_process_group();
  torch::manual_seed(1);
  tutorial::Net net;
  auto model = fsdp::fully_shard(net, {.strategy = fsdp::Strategy::kReplicate});
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
