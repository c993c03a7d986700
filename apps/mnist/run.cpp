#include "run.h"

#include <fsdp/sync_batch_norm.h>
#include <fsdp/trace.h>
#include <fsdp/wrap_policy.h>
#include <torch/torch.h>

#include <iostream>

#include "frame/moment.h"
#include "frame/observing_flags.h"
#include "frame/optimizer_flags.h"
#include "models/convnet.h"
#include "models/resnet18.h"

namespace mnist {
namespace {

std::shared_ptr<models::Classifier> make_net(const Arguments& arguments) {
  if (arguments.model == "convnet") {
    auto net = std::make_shared<models::ConvNet>(!arguments.no_dropout);
    net->run_convolutions = frame::part_runner(arguments.activations);
    return net;
  }
  return std::make_shared<models::ResNet18>();
}

fsdp::TrainerOptions trainer_options(const Arguments& arguments) {
  fsdp::TrainerOptions options;
  options.seed = static_cast<uint64_t>(arguments.seed);  // Ranks start with equal values, but draw different dropout.
  options.epochs = arguments.epochs;
  options.sharding = frame::sharding_options(arguments.sharding);
  if (arguments.auto_wrap)
    options.sharding.auto_wrap_policy = fsdp::size_based_auto_wrap_policy(arguments.min_num_params);
  frame::set_precision(options, arguments.precision);
  if (arguments.model == "resnet18" && arguments.activations.is_on())
    options.activation_checkpointing =
        fsdp::activation_checkpointing_of<models::BasicBlockImpl>(frame::checkpoint_options(arguments.activations));
  return options;
}

Model make_model(fsdp::Trainer& trainer, const Arguments& arguments) {
  const auto net = make_net(arguments);
  // With CPU offload, fully_shard moves the rows to host memory.
  if (!arguments.sharding.cpu_offload) net->to(trainer.device());
  if (arguments.sync_bn) fsdp::convert_sync_batchnorm(*net);
  return trainer.shard(net);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<torch::Tensor> parameters,
                                                        const Arguments& arguments) {
  const double lr = arguments.lr > 0 ? arguments.lr : frame::usual_learning_rate(arguments.optimizer);
  return frame::make_optimizer(arguments.optimizer, lr, {{std::move(parameters), 0.0}});
}

Share share_of(const images::Images& images, bool shuffle, int64_t batch_size, int64_t seed, c10::Device device) {
  return {normalised(images, device),
          fsdp::data::DistributedSampler(static_cast<size_t>(images.size()),
                                         {.shuffle = shuffle, .seed = static_cast<uint64_t>(seed)}),
          batch_size, device};
}

}  // namespace

Run train_and_test(const Arguments& arguments, const Parts& parts,
                   const std::function<void(const Model& model)>& sharded) {
  fsdp::Trainer trainer(trainer_options(arguments));
  const c10::Device device = trainer.device();
  Model model = make_model(trainer, arguments);
  if (fsdp::rank() == 0) std::cout << model << "\nTraining on " << device << std::endl;
  sharded(model);
  Share train_images = share_of(parts.train, true, arguments.batch_size, arguments.seed, device);
  Share tested = share_of(parts.test, false, arguments.test_batch_size, arguments.seed, device);
  const auto optimizer = make_optimizer(model.parameters(), arguments);

  frame::print_explanation(model, arguments.observing);
  const auto trace = frame::begin_trace(arguments.observing);
  frame::StepMetrics metrics(frame::open_scalar_log(arguments.observing, /*appends=*/false), parts.train.size(),
                             "images");
  const frame::Moment start(device);
  auto epochs = train(trainer, model, *optimizer, train_images, tested, metrics, arguments.gamma);
  const double seconds = frame::Moment(device).seconds_since(start);
  frame::write_trace(trace.get(), arguments.observing);
  return {std::move(model), std::move(epochs), seconds};
}

}  // namespace mnist
