// Predicts from a checkpoint without a whole model on any rank. The number of ranks must divide 48, but it can differ
// from the number of ranks that saved the checkpoint. If FOLDER has no checkpoint, the program first trains a model and
// saves it.
//
//     fsdprun --nproc_per_node 4 ./example_sharded_inference FOLDER    trains, saves and predicts
//     fsdprun --nproc_per_node 2 ./example_sharded_inference FOLDER    predicts the same
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

// A network that tells which of four numbers is the largest.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear in{4, 32}, out{32, 4};
  NetImpl() {
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::relu(in(x))); }
};
TORCH_MODULE(Net);

// Returns this rank's part of `batch`, which is the same on all ranks. The parts are equally large if the number of
// ranks divides the number of rows.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

void train_and_save(const std::string& folder) {
  auto model = fsdp::fully_shard(Net());
  fsdp::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 300; ++step) {
    const auto x = share_of(torch::randn({48, 4}));
    optimizer.zero_grad();
    torch::cross_entropy_loss(model(x), x.argmax(1)).backward();
    optimizer.step();
  }
  fsdp::save_checkpoint(folder, model, &optimizer, {.step = 300});
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: example_sharded_inference FOLDER" << std::endl;
    return 2;
  }
  fsdp::init_process_group();
  torch::manual_seed(1);  // Points and initial values are the same on every rank.
  const auto x = torch::randn({48, 4});

  auto model = fsdp::fully_shard(fsdp::meta_init([] { return Net(); }));
  fsdp::to_empty(model, torch::kCPU);  // Allocates memory for this rank's rows.
  auto loaded = fsdp::load_checkpoint(argv[1], model, nullptr, {.if_any = true});
  if (loaded.path.empty()) {
    train_and_save(argv[1]);
    loaded = fsdp::load_checkpoint(argv[1], model);
  }
  model->eval();

  const torch::NoGradGuard no_grad;
  const auto scores = fsdp::all_gather(model(share_of(x))).flatten(0, 1);  // Every rank gets the scores of all points.
  if (fsdp::rank() == 0) {
    std::cout << loaded.path << " of " << loaded.world_size << " ranks, read by " << fsdp::world_size() << std::endl;
    std::cout << scores.argmax(1).eq(x.argmax(1)).sum().item<int64_t>() << " of " << x.size(0) << " are right, loss "
              << torch::cross_entropy_loss(scores, x.argmax(1)).item<double>() << std::endl;
  }
  fsdp::destroy_process_group();
}
