// Step 3 of docs/tutorial.md makes each block a group of its own. It can do so in three ways, which give the same
// groups.
//
//     fsdprun --nproc_per_node 2 example_tutorial_step3_wrapped [calls|type|size]
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "counting.h"

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "calls";
  fsdp::init_process_group();
  torch::manual_seed(1);
  tutorial::Net net;
  fsdp::FullyShardOptions options;
  if (way == "calls")
    for (const auto& block : net->blocks->children()) fsdp::fully_shard(*block, options);
  else if (way == "type")
    options.auto_wrap_policy = fsdp::module_wrap_policy<tutorial::BlockImpl>();
  else
    options.auto_wrap_policy = fsdp::size_based_auto_wrap_policy(/*min_numel=*/20'000);
  auto model = fsdp::fully_shard(net, options);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  if (fsdp::rank() == 0) std::cout << fsdp::explain(model);
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
