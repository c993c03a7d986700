// Step 0 of docs/tutorial.md is a plain LibTorch training loop in one process.
//
//     example_tutorial_step0_plain
#include <torch/torch.h>

#include <iostream>

#include "counting.h"

int main() {
  torch::manual_seed(1);
  tutorial::Net model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const auto data = tutorial::Sequences().map(torch::data::transforms::Stack<>());
  const torch::data::samplers::SequentialSampler sampler(*data.size());

  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
    double sum = 0;
    int64_t steps = 0;
    const auto loader = torch::data::make_data_loader(data, sampler, /*batch_size=*/16);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto loss = tutorial::loss_of(model(batch.data), batch.target);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
      optimizer.step();
      sum += loss.item<double>();
      ++steps;
    }
    const double mean = sum / steps;
    std::cout << "epoch " << epoch << "  loss " << mean << std::endl;
  }
}
