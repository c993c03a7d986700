#include "arguments.h"

#include <CLI/CLI.hpp>

namespace gpt {

void add_flags(CLI::App& app, Arguments& arguments) {
  const auto add = [&app](const char* flag, auto& value, const char* help, const CLI::Validator& check) {
    app.add_option(flag, value, help)->check(check)->capture_default_str()->take_last();
  };

  app.add_option("--text", arguments.text_file, "Train on this file instead of the text inside the program")
      ->take_last();
  add("--dim", arguments.dim, "Width of the model, a multiple of --heads", CLI::PositiveNumber);
  add("--layers", arguments.layers, "Blocks", CLI::PositiveNumber);
  add("--heads", arguments.heads, "Attention heads of a block", CLI::PositiveNumber);
  add("--seq", arguments.seq, "Characters of a sequence, the longest context", CLI::PositiveNumber);

  add("--batch", arguments.batch, "Sequences per rank and step", CLI::PositiveNumber);
  add("--steps", arguments.steps, "Training steps", CLI::PositiveNumber);
  add("--lr", arguments.lr, "Highest learning rate", CLI::PositiveNumber);
  add("--warmup", arguments.warmup, "Steps until the learning rate is highest", CLI::NonNegativeNumber);
  add("--weight-decay", arguments.weight_decay, "Weight decay of the matrices", CLI::NonNegativeNumber);
  add("--max-grad-norm", arguments.max_grad_norm, "Gradients are scaled down to this norm", CLI::PositiveNumber);
  add("--seed", arguments.seed, "Seed of the model, the data order and the sample", CLI::NonNegativeNumber);
  add("--threads", arguments.threads, "Threads of each rank", CLI::PositiveNumber);

  add("--eval-every", arguments.eval_every, "Steps between validations; 0: only after the last step",
      CLI::NonNegativeNumber);
  add("--log-seconds", arguments.log_seconds, "Seconds between lines of progress, if not on a terminal",
      CLI::NonNegativeNumber);
  add("--sample", arguments.sample, "Characters of text to write at the end", CLI::NonNegativeNumber);
  add("--temperature", arguments.temperature, "Below 1 the sample keeps to likely characters", CLI::PositiveNumber);
}

}  // namespace gpt
