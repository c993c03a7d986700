// Trains on several hosts. The ranks of a host shard the parameters, and every host has all of them (HSDP). A step
// therefore sends gradients between hosts, but no parameters. For two hosts, the first of which is called `head`:
//
//     fsdprun --nnodes 2 --node-rank 0 --master-addr head --nproc-per-node 2 ./example_two_hosts    on head
//     fsdprun --nnodes 2 --node-rank 1 --master-addr head --nproc-per-node 2 ./example_two_hosts    on the other
//
// On one machine use 127.0.0.1 for head, and begin one command with FSDP_HOST=a and the other with FSDP_HOST=b.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

// Returns this rank's part of `batch`, which is the same on all ranks. The parts are equally large if the number of
// ranks divides the number of rows.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

int main() {
  namespace nn = torch::nn;
  fsdp::init_process_group();
  torch::manual_seed(1);  // Data and initial values are the same on every rank.
  const auto x = torch::randn({48, 128}), y = x.flip(1);

  // hosts() has the number of each rank's host, from 0. The ranks of a host have consecutive numbers, so the mesh has
  // one row for each host.
  const int hosts = *std::ranges::max_element(fsdp::default_process_group()->hosts()) + 1;
  fsdp::FullyShardOptions options;
  options.mesh = fsdp::init_device_mesh({hosts, fsdp::world_size() / hosts}, {"replicate", "shard"});
  options.auto_wrap_policy = fsdp::module_wrap_policy<nn::LinearImpl>();
  if (fsdp::rank() == 0) std::cout << *options.mesh << std::endl;
  auto model = fsdp::fully_shard(nn::Sequential(nn::Linear(128, 256), nn::Tanh(), nn::Linear(256, 128)), options);
  fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));

  for (int step = 0; step <= 100; ++step) {
    const auto before = fsdp::traffic();
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model(share_of(x)), share_of(y));
    loss.backward();
    optimizer.step();
    const auto moved = fsdp::traffic() - before;
    if (step % 20 == 0) {
      const double mean = fsdp::mean(loss.item<double>());
      if (fsdp::rank() == 0) std::cout << "step " << step << ": loss " << mean << ", " << moved << std::endl;
    }
  }
  fsdp::destroy_process_group();
}
