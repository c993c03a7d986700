// Measures what groups cost: 100 equal linear layers form 1 group, 5 groups of 20, or 100 groups of 1. The program
// starts two ranks itself, and they communicate over Gloo and then over shared memory. docs/choosing.md has the
// results.
//
//     example_wrapping [WIDTH [STEPS]]
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>

constexpr int64_t kLayers = 100;

struct PartImpl : torch::nn::Module {
  torch::nn::Sequential layers;
  PartImpl(int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; ++i) {
      layers->push_back(torch::nn::Linear(width, width));
      layers->push_back(torch::nn::Tanh());
    }
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
};
TORCH_MODULE(Part);

// Trains for `steps` steps and returns the seconds of the shortest one.
double train(fsdp::Sharded<torch::nn::Sequential>& model, const torch::Tensor& batch, int64_t steps) {
  fsdp::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1e-3));
  double shortest = std::numeric_limits<double>::max();
  for (int64_t i = 0; i < steps; ++i) {
    fsdp::barrier();
    const auto begun = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    model(batch).square().mean().backward();
    optimizer.step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    shortest = std::min(shortest, seconds.count());
  }
  return shortest;
}

void measure(const char* backend, int64_t parts, int64_t width, int64_t steps) {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (int64_t i = 0; i < parts; ++i) net->push_back(Part(kLayers / parts, width));
  if (parts > 1)
    for (const auto& part : net->children()) fsdp::fully_shard(*part);
  auto model = fsdp::fully_shard(net);
  const auto batch = torch::randn({32, width});
  train(model, batch, /*steps=*/2);  // From the second step on, groups are gathered ahead.
  model.reset_peak_stats();
  const auto before = model.stats();
  const double seconds = train(model, batch, steps);
  const auto after = model.stats();
  if (fsdp::rank() != 0) return;
  const int64_t layer_bytes = (width + 1) * width * 4;
  std::printf("| %s | %ld of %ld | %ld | %.1f | %ld | %ld | %.1f |\n", backend, parts, kLayers / parts,
              after.whole.peak, static_cast<double>(after.whole.peak) / static_cast<double>(layer_bytes),
              (after.gathers - before.gathers) / steps, (after.reductions - before.reductions) / steps, 1000 * seconds);
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  const int64_t width = argc > 1 ? std::stol(argv[1]) : 256;
  const int64_t steps = argc > 2 ? std::stol(argv[2]) : 30;
  std::puts("| backend | groups | whole parameters, bytes at most | in layers | gathers | reductions | ms per step |");
  std::puts("|---|---|---|---|---|---|---|");
  std::fflush(stdout);
  for (const char* backend : {"gloo", "shm"}) {
    const auto ranks = [&](int /*rank*/) {
      fsdp::init_process_group({.backend = backend});
      for (const int64_t parts : {1, 5, 100}) measure(backend, parts, width, steps);
      fsdp::destroy_process_group();
    };
    fsdp::spawn(ranks, 2);
  }
}
