// Low-rank adapters (LoRA) with a frozen base. The base and the adapters are sharded, but only the adapters have
// gradients and optimizer state. The program writes only the adapters to FILE, and continues with them if FILE already
// exists.
//
//     fsdprun --nproc_per_node 2 ./example_lora FILE
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

constexpr int64_t kDim = 64, kRank = 4;

struct AdapterImpl : torch::nn::Module {
  torch::nn::Linear down{torch::nn::LinearOptions(kDim, kRank).bias(false)};
  torch::nn::Linear up{torch::nn::LinearOptions(kRank, kDim).bias(false)};
  AdapterImpl() {
    register_module("down", down);
    register_module("up", up);
    torch::nn::init::zeros_(up->weight);  // At first, the adapter adds nothing to the base.
  }
  torch::Tensor forward(const torch::Tensor& x) { return up(down(x)); }
};
TORCH_MODULE(Adapter);

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList base, adapters;
  NetImpl() {
    register_module("base", base);
    register_module("adapters", adapters);
    for (int layer = 0; layer < 3; ++layer) {
      base->push_back(torch::nn::Linear(kDim, kDim));
      adapters->push_back(Adapter());
    }
    for (auto& parameter : base->parameters()) parameter.requires_grad_(false);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t layer = 0; layer < base->size(); ++layer) {
      auto& linear = *base[layer]->as<torch::nn::Linear>();
      auto& adapter = *adapters[layer]->as<Adapter>();
      x = x + torch::tanh(linear.forward(x) + adapter.forward(x));
    }
    return x;
  }
};
TORCH_MODULE(Net);

// Returns this rank's part of `batch`, which is the same on all ranks. The parts are equally large if the number of
// ranks divides the number of rows.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: example_lora FILE" << std::endl;
    return 2;
  }
  fsdp::init_process_group();
  torch::manual_seed(1);  // Every rank and every run makes the same base, which stands for a pretrained one.
  Net net;
  const auto x = torch::randn({48, kDim}), y = x.flip(1);

  for (auto& layer : *net->base) fsdp::fully_shard(*layer);
  const fsdp::Group adapters = fsdp::fully_shard(*net->adapters);
  auto model = fsdp::fully_shard(net);
  if (std::filesystem::exists(argv[1])) fsdp::load_safetensors(argv[1], adapters);
  fsdp::optim::AdamW optimizer(adapters.parameters(), torch::optim::AdamWOptions(1e-2));
  if (fsdp::rank() == 0)
    std::cout << "trains " << adapters.stats().parameter_numel << " of " << model.stats().parameter_numel << " elements"
              << std::endl;

  for (int step = 0; step <= 200; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(model(share_of(x)), share_of(y));
    loss.backward();
    if (step % 50 == 0) {
      const double mean = fsdp::mean(loss.item<double>());
      if (fsdp::rank() == 0) std::cout << "step " << step << ": loss " << mean << std::endl;
    }
    optimizer.step();
  }
  fsdp::save_safetensors(argv[1], adapters);
  fsdp::destroy_process_group();
}
