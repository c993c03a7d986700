#include "arguments.h"

#include <CLI/CLI.hpp>

namespace gpt {

void add_flags(CLI::App& app, Arguments& arguments) {
  const auto add = [&app](const char* flag, auto& value, const char* help, const CLI::Validator& check) {
    app.add_option(flag, value, help)->check(check)->capture_default_str();
  };
  const CLI::PositiveNumber positive;
  const CLI::NonNegativeNumber not_negative;

  app.add_option("--text", arguments.text_file, "Train on this file instead of the text inside the program");
  add("--dim", arguments.dim, "Width of the model, a multiple of --heads", positive);
  add("--layers", arguments.layers, "Blocks", positive);
  add("--heads", arguments.heads, "Attention heads of a block", positive);
  add("--seq", arguments.seq, "Characters of a sequence, the longest context", positive);

  add("--batch", arguments.batch, "Sequences per rank and step", positive);
  add("--steps", arguments.steps, "Training steps", positive);
  add("--lr", arguments.lr, "Highest learning rate", positive);
  add("--warmup", arguments.warmup, "Steps until the learning rate is highest", not_negative);
  add("--weight-decay", arguments.weight_decay, "Weight decay of the matrices", not_negative);
  add("--max-grad-norm", arguments.max_grad_norm, "Gradients are scaled down to this norm", positive);
  add("--seed", arguments.seed, "Seed of the model, the data order and the sample", not_negative);
  add("--threads", arguments.threads, "Threads of each rank", positive);

  add("--eval-every", arguments.eval_every, "Steps between validations; 0: only after the last step", not_negative);
  add("--log-seconds", arguments.log_seconds, "Seconds between lines of progress, if not on a terminal", not_negative);
  add("--sample", arguments.sample, "Characters of text to write at the end", not_negative);
  add("--temperature", arguments.temperature, "Below 1 the sample keeps to likely characters", positive);
}

}  // namespace gpt
