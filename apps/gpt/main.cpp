// gpt: trains a character-level GPT from scratch, sharded over the ranks it is started on. docs/gpt.md describes it.
#include <embedded_text.h>
#include <fsdp/fsdp.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "arguments.h"
#include "optimizer.h"
#include "sampling.h"
#include "summary.h"
#include "text.h"
#include "training.h"

namespace gpt {
namespace {

Model make_model(const models::GPTConfig& config, int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));  // The same values on every rank.
  models::GPT gpt(config);
  for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
  return fsdp::fully_shard(gpt);
}

void print_result(const Outcome& outcome, const std::string& sample, const std::string& table) {
  std::cout << "\nsample:\n"
            << sample << "\n\n"
            << table << '\n'
            << outcome.tokens << " characters in " << static_cast<int64_t>(outcome.training_seconds) << " s, "
            << static_cast<int64_t>(static_cast<double>(outcome.tokens) / outcome.training_seconds)
            << " characters/s on " << fsdp::world_size() << (fsdp::world_size() == 1 ? " rank" : " ranks")
            << "; validation loss " << outcome.validation_loss << " nats per character" << std::endl;
}

void run(const Arguments& arguments) {
  torch::set_num_threads(static_cast<int>(arguments.threads));
  const Text text = arguments.text_file.empty() ? Text(fsdp::tiny_shakespeare()) : Text(read_file(arguments.text_file));
  fsdp::init_process_group({.backend = "cpu"});  // The model is on the CPU, however many GPUs there are.
  const bool is_first = fsdp::rank() == 0;

  const models::GPTConfig config{text.vocabulary_size(), arguments.seq, arguments.dim, arguments.layers,
                                 arguments.heads};
  Model model = make_model(config, arguments.seed);
  if (is_first) std::cout << model << std::endl;

  auto optimizer = make_optimizer(model->parameters(), arguments);
  const Outcome outcome = train(model, optimizer, text, arguments);
  const HeldBytes held = held_bytes(model->parameters(), model.stats().optimizer.current);
  const std::string sample = write_sample(model, text, arguments);
  const std::string table = memory_table(model, held, config, arguments);
  if (is_first) print_result(outcome, sample, table);
  fsdp::destroy_process_group();
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  CLI::App app("Trains a character-level GPT from scratch, fully sharded over the ranks it is started on.");
  gpt::Arguments arguments;
  gpt::add_flags(app, arguments);
  CLI11_PARSE(app, argc, argv);
  try {
    gpt::run(arguments);
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << "gpt: " << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "gpt: " << error.what() << std::endl;
  }
  return 1;
}
