// A program outside the repository: only installed headers, only fsdp::fsdp.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  fsdp::init_process_group();
  auto model = fsdp::fully_shard(torch::nn::Linear(4, 4));
  torch::Tensor output = model(torch::ones({2, 4}));
  output.sum().backward();
  std::cout << model << '\n' << output.sizes() << " on rank " << fsdp::rank() << " of " << fsdp::world_size() << '\n';
  const bool right = output.sizes() == torch::IntArrayRef({2, 4}) && model->weight.grad().defined();
  fsdp::destroy_process_group();
  return right ? 0 : 1;
}
