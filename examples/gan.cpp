// A GAN: a generator and a discriminator train alternately until the generator turns noise into points of a normal
// distribution. Each of the two is sharded and has an optimizer of its own. The example shows detach(), and how to
// freeze a model for a part of a step.
//
//     fsdprun --nproc_per_node 2 ./example_gan
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>

using Net = fsdp::Sharded<torch::nn::Sequential>;

Net make_net(int64_t in, int64_t out) {
  namespace nn = torch::nn;
  return fsdp::fully_shard(nn::Sequential(nn::Linear(in, 32), nn::LeakyReLU(), nn::Linear(32, out)));
}

void set_requires_grad(const Net& net, bool requires_grad) {
  for (auto& parameter : net.parameters()) parameter.requires_grad_(requires_grad);
}

// Returns this rank's part of `batch`, which is the same on all ranks. The parts are equally large if the number of
// ranks divides the number of rows.
torch::Tensor share_of(const torch::Tensor& batch) { return batch.tensor_split(fsdp::world_size())[fsdp::rank()]; }

int main() {
  fsdp::init_process_group();
  torch::manual_seed(1);  // Points, noise and initial values are the same on every rank.
  const auto center = torch::tensor({2.0F, -1.0F});
  Net generator = make_net(2, 2), discriminator = make_net(2, 1);
  const auto options = [](double lr) { return torch::optim::AdamOptions(lr).betas({0.5, 0.9}); };
  fsdp::optim::Adam generator_optimizer(generator.parameters(), options(1e-3));
  fsdp::optim::Adam discriminator_optimizer(discriminator.parameters(), options(4e-3));

  for (int step = 0; step <= 1000; ++step) {
    const auto real = share_of(center + 0.5 * torch::randn({96, 2}));
    const auto fake = generator(share_of(torch::randn({96, 2})));
    const auto ones = torch::ones({real.size(0), 1}), zeros = torch::zeros({real.size(0), 1});

    set_requires_grad(discriminator, true);
    const auto scores = discriminator(torch::cat({real, fake.detach()}));  // No gradients flow to the generator.
    const auto loss = torch::binary_cross_entropy_with_logits(scores, torch::cat({ones, zeros}));
    loss.backward();
    discriminator_optimizer.step();
    discriminator_optimizer.zero_grad();

    set_requires_grad(discriminator, false);  // Gradients pass through it, but it has none to reduce.
    torch::binary_cross_entropy_with_logits(discriminator(fake), ones).backward();
    generator_optimizer.step();
    generator_optimizer.zero_grad();

    if (step % 100 == 0) {
      const double mean_loss = fsdp::mean(loss.item<double>());
      const auto mean = fsdp::all_reduce(fake.detach().mean(0)) / fsdp::world_size();
      if (fsdp::rank() == 0)
        std::cout << "step " << step << ": loss " << mean_loss << ", mean of the points " << mean[0].item<float>()
                  << ' ' << mean[1].item<float>() << std::endl;
    }
  }
  fsdp::destroy_process_group();
}
