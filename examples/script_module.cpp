// A sharded TorchScript module. Each block is a group; loops and branches stay in the script. The program trains the
// module and writes it whole to FILE, which torch::jit::load and Python's torch.jit.load open.
//
//     fsdprun --nproc_per_node 2 ./example_script_module FILE
#include <fsdp/fsdp.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <iostream>

torch::jit::Module make_block(int64_t dim) {
  torch::jit::Module block("Block");
  block.register_parameter("weight", torch::randn({dim, dim}) / 4, /*is_buffer=*/false);
  block.register_parameter("bias", torch::zeros(dim), /*is_buffer=*/false);
  block.define(R"(
    def forward(self, x):
      return x + torch.tanh(torch.linear(x, self.weight, self.bias))
  )");
  return block;
}

// Makes the module. Your program would load it with torch::jit::load from a file that Python has written.
torch::jit::Module make_net() {
  torch::jit::Module net("Net");
  net.register_module("first", make_block(16));
  net.register_module("second", make_block(16));
  net.define(R"(
    def forward(self, x, repeats: int):
      for i in range(repeats):
        x = self.first.forward(x)
      return self.second.forward(x)
  )");
  for (auto parameter : net.parameters()) parameter.requires_grad_();
  return net;
}

// Returns this rank's part of `batch`, which is the same on all ranks. The parts are equally large if the number of
// ranks divides the number of rows.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: example_script_module FILE" << std::endl;
    return 2;
  }
  fsdp::init_process_group();
  torch::manual_seed(1);  // Data and initial values are the same on every rank.
  auto net = make_net();
  const auto x = torch::randn({48, 16}), y = x.flip(1);

  for (auto block : net.children()) fsdp::fully_shard(block);
  auto model = fsdp::fully_shard(net);
  fsdp::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step <= 200; ++step) {
    optimizer.zero_grad();
    const auto output = model(std::vector<c10::IValue>{share_of(x), /*repeats=*/2}).toTensor();
    const auto loss = torch::mse_loss(output, share_of(y));
    loss.backward();
    if (step % 50 == 0) {
      const double mean = fsdp::mean(loss.item<double>());
      if (fsdp::rank() == 0) std::cout << "step " << step << ": loss " << mean << std::endl;
    }
    optimizer.step();
  }
  {
    const auto whole = fsdp::summon_full_params(model, {.rank0_only = true});
    if (fsdp::rank() == 0) net.save(argv[1]);
  }
  fsdp::destroy_process_group();
}
