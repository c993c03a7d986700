#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

// The part of a batch that this rank trains on.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

void train(int /*rank*/) {
  fsdp::init_process_group();
  torch::manual_seed(1);  // Every rank makes the same data and the same first values.
  const auto x = torch::randn({48, 4}), y = torch::sin(x.sum(1, /*keepdim=*/true));

  torch::nn::Sequential net(torch::nn::Linear(4, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  auto model = fsdp::fully_shard(net);  // From here each rank keeps its rows of every parameter.
  const auto [first, count] = fsdp::local_rows(net[0]->as<torch::nn::Linear>()->weight);
  std::cout << "rank " << fsdp::rank() << " keeps " << count << " of 64 rows, from row " << first << std::endl;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));

  for (int step = 0; step <= 100; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model(share_of(x)), share_of(y));
    loss.backward();
    fsdp::clip_grad_norm_(model, 1.0);
    optimizer.step();
    const double mean = fsdp::mean(loss.item<double>());  // The mean over all ranks, on every rank.
    if (step % 25 == 0 && fsdp::rank() == 0) std::cout << "step " << step << ": loss " << mean << std::endl;
  }
  fsdp::destroy_process_group();
}

int main() { fsdp::spawn(train, 2); }  // Two ranks on this machine. A launcher such as fsdprun starts ranks on several.
