// mnist: trains a network on handwritten digits, sharded over the ranks it is started on. docs/mnist.md describes it.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <iomanip>
#include <iostream>

#include "arguments.h"
#include "data.h"
#include "frame/moment.h"
#include "frame/optimizer_flags.h"
#include "frame/run_program.h"
#include "models/convnet.h"
#include "models/resnet18.h"
#include "report.h"
#include "saving.h"
#include "training.h"

namespace mnist {
namespace {

constexpr int64_t kLeastToWrap = 20'000;

c10::Device join_ranks(const Arguments& arguments) {
  const bool on_gpu = !arguments.no_cuda && torch::cuda::is_available();
  fsdp::init_process_group({.backend = on_gpu ? "nccl" : "cpu"});
  return on_gpu ? c10::Device(torch::kCUDA, static_cast<c10::DeviceIndex>(fsdp::local_rank())) : torch::kCPU;
}

std::shared_ptr<models::Classifier> make_net(const Arguments& arguments) {
  if (arguments.model == "convnet") {
    auto net = std::make_shared<models::ConvNet>(!arguments.no_dropout);
    net->run_convolutions = frame::part_runner(arguments.activations);
    return net;
  }
  auto net = std::make_shared<models::ResNet18>();
  if (arguments.activations.is_on())
    fsdp::apply_activation_checkpointing<models::BasicBlockImpl>(*net,
                                                                 frame::checkpoint_options(arguments.activations));
  return net;
}

Model make_model(const Arguments& arguments, c10::Device device) {
  torch::manual_seed(static_cast<uint64_t>(arguments.seed));  // The same values on every rank.
  const auto net = make_net(arguments);
  if (!arguments.sharding.cpu_offload) net->to(device);  // else fully_shard leaves each rank its rows in host memory
  if (arguments.sync_bn) fsdp::convert_sync_batchnorm(*net);
  auto options = frame::sharding_options(arguments.sharding);
  options.mp_policy = frame::precision_policy(arguments.precision);
  if (arguments.auto_wrap) options.auto_wrap_policy = fsdp::size_based_auto_wrap_policy(kLeastToWrap);
  Model model = fsdp::fully_shard(net, options);
  // From here each rank draws its own numbers, for dropout.
  torch::manual_seed(static_cast<uint64_t>(arguments.seed + 1 + fsdp::rank()));
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<torch::Tensor> parameters,
                                                        const Arguments& arguments) {
  const double lr = arguments.lr > 0 ? arguments.lr : frame::usual_learning_rate(arguments.optimizer);
  return frame::make_optimizer(arguments.optimizer, lr, {{std::move(parameters), 0.0}});
}

Share share_of(const fsdp::data::Images& images, bool shuffle, int64_t batch_size, int64_t seed, c10::Device device) {
  return {normalised(images, device),
          fsdp::data::DistributedSampler(static_cast<size_t>(images.size()),
                                         {.shuffle = shuffle, .seed = static_cast<uint64_t>(seed)}),
          batch_size, device};
}

void run(const Arguments& arguments) {
  torch::set_num_threads(static_cast<int>(arguments.threads));
  const Parts parts = load_images(arguments);
  const c10::Device device = join_ranks(arguments);
  const bool is_first = fsdp::rank() == 0;

  Model model = make_model(arguments, device);
  if (is_first) std::cout << model << "\nTraining on " << device << std::endl;
  Share train = share_of(parts.train, true, arguments.batch_size, arguments.seed, device);
  Share tested = share_of(parts.test, false, arguments.test_batch_size, arguments.seed, device);
  const auto optimizer = make_optimizer(model.parameters(), arguments);
  auto scaler = frame::make_scaler(arguments.precision);
  torch::optim::StepLR schedule(*optimizer, /*step_size=*/1, arguments.gamma);
  schedule.step();  // LibTorch's first call leaves the rate as it is; Python's schedules make it themselves.

  const frame::Moment start(device);
  for (int64_t epoch = 1; epoch <= arguments.epochs; ++epoch) {
    const double loss = train_epoch(model, *optimizer, scaler, train, epoch, arguments.precision);
    if (is_first) std::cout << epoch_text(epoch, loss) << std::endl;
    const TestResult result = test(model, tested, arguments.precision);
    if (is_first) std::cout << test_text(result) << std::endl;
    schedule.step();
  }
  const double seconds = frame::Moment(device).seconds_since(start);
  const std::string memory = peak_memory_text(model);
  if (is_first)
    std::cout << "Elapsed: " << std::fixed << std::setprecision(2) << seconds << " s\n" << memory << std::endl;
  if (arguments.save_model) save_model(model, "mnist_cnn.pt");
  fsdp::destroy_process_group();
}

}  // namespace
}  // namespace mnist

int main(int argc, char** argv) {
  CLI::App app("Trains a network on handwritten digits, sharded over the ranks it is started on.", "mnist");
  mnist::Arguments arguments;
  mnist::add_flags(app, arguments);
  return frame::run_program(app, argc, argv, [&] { mnist::run(arguments); });
}
