#pragma once
/// \file
/// What the program is told by flags.

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
  /// The folder with MNIST's files; empty: digits that the program draws.
  std::string data;
  /// Use no more than these; 0: all of MNIST, or kDrawnForTraining and kDrawnForTest.
  int64_t train_samples = 0;
  int64_t test_samples = 0;

  /// "convnet" or "resnet18".
  std::string model = "convnet";
  bool auto_wrap = false;
  /// With auto_wrap, modules with so many parameters become groups.
  int64_t min_num_params = 20'000;
  /// Trains by DDP, FSDP and FSDP with auto_wrap, one after the other, instead of by one of them.
  bool compare = false;
  frame::ShardingFlags sharding;
  frame::PrecisionFlags precision;
  frame::ActivationFlags activations;
  frame::ObservingFlags observing;
  bool no_dropout = false;
  /// Batch norms take their statistics over all ranks.
  bool sync_bn = false;

  /// Images per rank and step.
  int64_t batch_size = 64;
  int64_t test_batch_size = 1000;
  int64_t epochs = 10;
  std::string optimizer = "adadelta";
  /// 0: the optimizer's usual one.
  double lr = 0;
  /// The learning rate's factor from one epoch to the next.
  double gamma = 0.7;
  int64_t seed = 1;

  bool no_cuda = false;
  int64_t threads = 1;
  bool save_model = false;
};

/// Lets `app` fill `arguments`, whose values are the defaults.
void add_flags(CLI::App& app, Arguments& arguments);

}  // namespace mnist
