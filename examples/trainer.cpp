// Trains a small network to tell which points of the plane lie in a ring. The program starts two ranks itself, and
// saves checkpoints to FOLDER. After an interruption, e.g. by Ctrl-C, the next start resumes where the last one ended.
// docs/trainer.md explains this program.
//
//     example_trainer [FOLDER [EPOCHS]]
#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

struct NetImpl : torch::nn::Module {
  torch::nn::Linear in{2, 64}, hidden{64, 64}, out{64, 2};
  NetImpl() {
    register_module("in", in);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = torch::relu(hidden(torch::relu(in(x))));
    return out(torch::dropout(h, 0.1, is_training()));
  }
};
TORCH_MODULE(Net);

struct Points : torch::data::Dataset<Points> {
  torch::Tensor points = torch::rand({2048, 2}, at::detail::createCPUGenerator(/*seed=*/1)) * 8 - 4;
  torch::data::Example<> get(size_t number) override {
    const auto point = points[static_cast<int64_t>(number)], radius = point.norm();
    return {point, (radius > 2).logical_and(radius < 3.5).to(torch::kLong)};
  }
  std::optional<size_t> size() const override { return 2048; }
};

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "rings";
  fsdp::TrainerOptions options;
  options.devices = 2;
  options.seed = 1;
  options.epochs = argc > 2 ? std::stol(argv[2]) : 10;
  options.max_grad_norm = 1.0;
  options.save = {.folder = folder, .every = 20, .async = true};
  options.resume = folder;
  fsdp::Trainer::run(options, [](fsdp::Trainer& trainer) {
    auto model = trainer.shard(Net());
    fsdp::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    const auto points = Points().map(torch::data::transforms::Stack<>());
    fsdp::data::DistributedSampler sampler(*points.size(), {.seed = 1});
    const auto data = [&](int64_t epoch) {
      sampler.set_epoch(static_cast<size_t>(epoch));
      return torch::data::make_data_loader(points, sampler, /*batch_size=*/64);
    };
    const auto loss = [](auto& net, auto& batch) {
      return torch::cross_entropy_loss(net(batch.data), batch.target);
    };
    trainer.add({.on_epoch_end = [](const fsdp::TrainingPlace& place) {
      if (fsdp::rank() == 0) std::cout << "epoch " << place.epoch + 1 << " ends with step " << place.step << std::endl;
    }});
    if (!trainer.fit(model, optimizer, data, loss)) return;  // A signal ended the training.

    const auto sums = trainer.test(model, data(0), [](auto& net, auto& batch) -> std::vector<torch::Tensor> {
      return {net(batch.data).argmax(1).eq(batch.target).sum(), torch::tensor(batch.target.size(0))};
    });
    if (fsdp::rank() == 0) std::cout << "accuracy " << 100 * sums[0] / sums[1] << " %" << std::endl;
  });
}
