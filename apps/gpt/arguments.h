#pragma once
/// \file
/// What `gpt` can be told on the command line.

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace gpt {

struct Arguments {
  /// Empty: the text that is part of the program.
  std::string text_file;

  int64_t dim = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t seq = 64;

  /// Sequences per rank and step.
  int64_t batch = 16;
  int64_t steps = 1700;
  double lr = 3e-3;
  /// Steps over which the learning rate rises to `lr`; then it falls to a tenth of it.
  int64_t warmup = 100;
  double weight_decay = 0.1;
  double max_grad_norm = 1.0;
  int64_t seed = 0;
  int64_t threads = 1;

  /// Steps from one validation to the next; 0: only after the last.
  int64_t eval_every = 250;
  /// Seconds between two lines of progress where there is no terminal.
  double log_seconds = 5.0;

  /// Characters of text to write at the end.
  int64_t sample = 400;
  double temperature = 0.8;
};

/// Lets `app` fill `arguments`, whose values are the defaults.
void add_flags(CLI::App& app, Arguments& arguments);

}  // namespace gpt
