#include "arguments.h"

#include <CLI/CLI.hpp>

#include "frame/flag_checks.h"
#include "frame/optimizer_flags.h"

namespace mnist {

void add_flags(CLI::App& app, Arguments& arguments) {
  const auto add = [&app](const char* flag, auto& value, const char* help, const CLI::Validator& check) {
    app.add_option(flag, value, help)->check(check)->capture_default_str()->take_last();
  };

  app.add_option("--data", arguments.data,
                 "Folder with MNIST's four files, compressed with gzip or not; without this flag the program draws its "
                 "own digits")
      ->check(frame::path())
      ->take_last();
  add("--train-samples", arguments.train_samples,
      "Number of training images; 0: all images of --data, or 6000 drawn ones", frame::count_or_none());
  add("--test-samples", arguments.test_samples, "Number of test images; 0: all images of --data, or 1000 drawn ones",
      frame::count_or_none());

  app.add_flag("--no-cuda", arguments.no_cuda, "Use the CPU even if there is a GPU");
  add("--model", arguments.model, "The network", CLI::IsMember({"convnet", "resnet18"}));
  auto* auto_wrap = app.add_flag("--auto-wrap", arguments.auto_wrap,
                                 "Make modules of at least --min-num-params parameters groups of their own");
  add("--min-num-params", arguments.min_num_params,
      "With --auto-wrap: least number of parameters in a module that becomes a group", frame::count());
  app.get_option("--min-num-params")->needs(auto_wrap);
  frame::add_sharding_flags(app, arguments.sharding);
  frame::add_precision_flags(app, arguments.precision);
  frame::add_activation_flags(app, arguments.activations);
  app.add_flag("--no-dropout", arguments.no_dropout,
               "Turn dropout off: two ranks then compute what one rank computes with twice the batch");

  app.add_flag("--sync-bn", arguments.sync_bn, "Compute the statistics of batch norms over the batches of all ranks");
  app.final_callback([&arguments] {
    if (arguments.sync_bn && arguments.model == "convnet")
      throw CLI::ValidationError("--sync-bn", "the convnet has no batch norm; expected --model resnet18");
  });

  add("--batch-size", arguments.batch_size, "Number of images per rank and training step", frame::count());
  add("--test-batch-size", arguments.test_batch_size, "Number of images per rank and test step", frame::count());
  add("--epochs", arguments.epochs, "Number of passes over the training images", frame::count());
  frame::add_optimizer_flags(app, arguments.optimizer);
  app.add_option("--lr", arguments.lr,
                 "Learning rate of the first epoch (adadelta 1, sgd and adagrad 0.01, the others 0.001)")
      ->check(frame::positive_number())
      ->take_last();
  add("--gamma", arguments.gamma, "Factor by which the learning rate is multiplied after each epoch",
      frame::number_from_0(1));
  add("--seed", arguments.seed, "Seed of the model, the order of the images and dropout", frame::seed());

  add("--threads", arguments.threads, "Number of threads per rank", frame::threads());
  frame::add_observing_flags(app, arguments.observing);
  auto* save_model = app.add_flag("--save-model", arguments.save_model, "Write the trained model to mnist_cnn.pt");
  app.add_flag("--compare", arguments.compare,
               "Train with DDP, FSDP, and FSDP with --auto-wrap one after another, and print the results side by side")
      ->excludes(auto_wrap)
      ->excludes(app.get_option("--strategy"))
      ->excludes(save_model)
      ->excludes(app.get_option("--trace"))
      ->excludes(app.get_option("--metrics"))
      ->excludes(app.get_option("--tensorboard"))
      ->excludes(app.get_option("--explain"));
}

}  // namespace mnist
