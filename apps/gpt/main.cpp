// fsdp-gpt trains a GPT from scratch on a text. The model is sharded over all ranks. README.md describes the program.
#include <fsdp/fsdp.h>
#include <malloc.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <limits>
#include <optional>

#include "arguments.h"
#include "axes.h"
#include "baseline.h"
#include "checkpoints.h"
#include "explanation.h"
#include "frame/observing_flags.h"
#include "frame/run_program.h"
#include "metrics.h"
#include "model.h"
#include "optimizer.h"
#include "sampling.h"
#include "stages.h"
#include "summary.h"
#include "text.h"
#include "training.h"

namespace gpt {
namespace {

void print_result(const Outcome& outcome, std::string_view unit, const std::string& sample, const std::string& table) {
  std::cout << "\nsample:\n"
            << sample << "\n\n"
            << table << '\n'
            << outcome.tokens << ' ' << unit << "s in " << static_cast<int64_t>(outcome.training_seconds) << " s, "
            << static_cast<int64_t>(static_cast<double>(outcome.tokens) / outcome.training_seconds) << ' ' << unit
            << "s/s on " << fsdp::world_size() << (fsdp::world_size() == 1 ? " rank" : " ranks") << "; validation loss "
            << outcome.validation_loss << " nats per " << unit << ", perplexity " << std::exp(outcome.validation_loss)
            << std::endl;
}

/// Makes glibc keep freed memory. A step allocates and frees large tensors. By default glibc returns their pages to the
/// system each time, and the system clears pages before it hands them out again. With a large vocabulary this takes a
/// considerable part of a step.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

void run(const Arguments& arguments) {
  keep_freed_memory();
  torch::set_num_threads(static_cast<int>(arguments.threads));
  const auto corpus = read_corpus(arguments);
  fsdp::init_process_group({.backend = arguments.no_cuda ? "cpu" : "auto"});
  const bool is_first = fsdp::rank() == 0;
  const Text text = make_text(corpus, arguments);
  const auto start = sample_start(text, arguments);
  const auto sizes = axis_sizes(arguments, fsdp::world_size());
  const text::TextBatches batches(text.training, text.validation,
                                  {.seq = arguments.seq,
                                   .sequences = arguments.batch,
                                   .micro_batches = arguments.update_freq,
                                   .epochs = arguments.epochs,
                                   .steps = arguments.steps,
                                   .seed = arguments.seed,
                                   .rank = sizes.share_of(fsdp::rank()),
                                   .world_size = sizes.data});
  const int64_t vocabulary = text.tokenizer->vocabulary_size();

  fsdp::Trainer trainer(trainer_options(arguments, sizes, batches.steps()));
  const Axes axes = sizes.is_data_alone() ? Axes() : make_axes(trainer.mesh(), arguments);
  Model model =
      trainer.shard(make_module(arguments, vocabulary, trainer.device(), axes.tensor, own_blocks(axes, arguments)));
  if (is_first) std::cout << model << '\n' << baseline_line(text) << "\nTraining on " << trainer.device() << std::endl;

  const auto optimizer = make_optimizer(model->parameters(), arguments);
  std::optional<Stages> stages;
  if (axes.pipe) {
    stages.emplace(model, axes, vocabulary, arguments, std::cout);
    trainer.set_pipeline(stages->pipeline());
  }
  auto* const pipeline = stages ? &*stages : nullptr;
  restore(trainer, model, pipeline, *optimizer, batches, arguments);
  frame::print_explanation(model, arguments.observing);
  if (arguments.observing.explain && is_first)
    std::cout << axes_text(sizes, fsdp::explain(model), arguments) << std::flush;
  const auto trace = frame::begin_trace(arguments.observing);
  auto metrics = step_metrics(model, axes, trainer.device(), vocabulary, batches, trainer.place().step,
                              text.tokenizer->unit(), arguments);
  const Outcome outcome =
      train(trainer, model, pipeline, *optimizer, batches, axes, text.tokenizer->unit(), metrics, arguments);
  frame::write_trace(trace.get(), arguments.observing);
  if (!outcome.is_complete) return fsdp::destroy_process_group();
  const HeldBytes held = held_bytes(model->parameters(), model.stats().optimizer.current);
  const auto next_token = [&](const torch::Tensor& context) {
    return stages ? stages->next_token(context) : model(context.to(trainer.device())).select(1, -1).squeeze(0);
  };
  const std::string sample = write_sample(model, next_token, text, start, arguments);
  const std::string table = memory_table(model, held, vocabulary, arguments);
  if (is_first) print_result(outcome, text.tokenizer->unit(), sample, table);
  fsdp::destroy_process_group();
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT from scratch on a text. The model is sharded over all ranks that are started.",
               "fsdp-gpt");
  gpt::Arguments arguments;
  gpt::add_flags(app, arguments);
  return frame::run_program(app, argc, argv, [&] { gpt::run(arguments); });
}
