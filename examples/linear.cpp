// Fits y = x A + b: the whole of sharded training in its fewest lines.
//
//     ./example_linear 2                             starts two ranks itself
//     fsdprun --nproc_per_node 2 ./example_linear    two ranks that a launcher starts
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

// This rank's part of a batch that all ranks have made alike: parts are equal if their number divides the batch.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

void train(int /*rank*/) {
  fsdp::init_process_group();
  torch::manual_seed(1);  // the same on every rank: data and first values are equal
  const auto x = torch::randn({48, 4}), y = x.matmul(torch::randn({4, 8})) + torch::randn(8);

  auto model = fsdp::fully_shard(torch::nn::Linear(4, 8));
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
  const auto [first, count] = fsdp::local_rows(model->weight);
  std::cout << "rank " << fsdp::rank() << " has " << count << " rows of 8, from row " << first << std::endl;

  for (int step = 0; step <= 100; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model(share_of(x)), share_of(y));
    loss.backward();  // leaves this rank's rows of the gradients' mean over the ranks
    optimizer.step();
    if (step % 20 == 0) {
      const double mean = fsdp::mean(loss.item<double>());  // on every rank: it waits for all of them
      if (fsdp::rank() == 0) std::cout << "step " << step << ": loss " << mean << std::endl;
    }
  }
  fsdp::destroy_process_group();
}

int main(int argc, char** argv) {
  if (argc > 1)
    fsdp::spawn(train, std::stoi(argv[1]));
  else
    train(0);
}
