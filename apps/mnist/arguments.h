#pragma once
/// \file
/// The flags of `fsdp-mnist`.

#include <cstdint>
#include <string>

#include "frame/activation_flags.h"
#include "frame/observing_flags.h"
#include "frame/precision_flags.h"
#include "frame/sharding_flags.h"

namespace CLI {
class App;
}

namespace mnist {

struct Arguments {
  /// Folder with MNIST's files. If it is empty, the program draws digits itself.
  std::string data;
  /// Numbers of images to use. With 0 the program uses all images of MNIST, or draws kDrawnForTraining and
  /// kDrawnForTest.
  int64_t train_samples = 0;
  int64_t test_samples = 0;

  /// Name of the network: "convnet" or "resnet18".
  std::string model = "convnet";
  bool auto_wrap = false;
  /// With auto_wrap, a module becomes a group if it has at least this many parameters.
  int64_t min_num_params = 20'000;
  /// True if the program trains three times: by DDP, by FSDP, and by FSDP with auto_wrap.
  bool compare = false;
  frame::ShardingFlags sharding;
  frame::PrecisionFlags precision;
  frame::ActivationFlags activations;
  frame::ObservingFlags observing;
  bool no_dropout = false;
  /// True if batch norms compute their statistics over all ranks.
  bool sync_bn = false;

  /// Number of images per rank and step.
  int64_t batch_size = 64;
  int64_t test_batch_size = 1000;
  int64_t epochs = 10;
  std::string optimizer = "adadelta";
  /// Learning rate; 0 means the optimizer's usual learning rate.
  double lr = 0;
  /// Factor by which the learning rate is multiplied after each epoch.
  double gamma = 0.7;
  int64_t seed = 1;

  bool no_cuda = false;
  int64_t threads = 1;
  bool save_model = false;
};

/// Lets `app` fill `arguments`, whose values are the defaults.
void add_flags(CLI::App& app, Arguments& arguments);

}  // namespace mnist
