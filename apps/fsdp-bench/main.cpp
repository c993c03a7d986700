// fsdp-bench times parts of the library and prints the results. apps/gpt/README.md describes it.
#include <CLI/CLI.hpp>

#include "activations.h"
#include "arguments.h"
#include "attention.h"
#include "checkpoint.h"
#include "collectives.h"
#include "deferred.h"
#include "frame/run_program.h"
#include "intercept.h"
#include "join_ranks.h"
#include "offload.h"
#include "optim.h"
#include "overhead.h"
#include "scale.h"
#include "scaling.h"
#include "schedule.h"
#include "step.h"
#include "versus.h"

int main(int argc, char** argv) {
  CLI::App app("Times what fsdp does and prints the figures, as one line of JSON or as a table.", "fsdp-bench");
  app.require_subcommand(1);
  bench::StepArguments step_arguments;
  auto* step = app.add_subcommand("step", "A training step of a GPT: time, memory by class, losses");
  bench::add_flags(*step, step_arguments);
  bench::CollectivesArguments collectives_arguments;
  auto* collectives = app.add_subcommand(
      "collectives", "Every collective, with its results verified, compared with Gloo and with a copy in memory");
  bench::add_flags(*collectives, collectives_arguments);
  bench::InterceptArguments intercept_arguments;
  auto* intercept = app.add_subcommand("intercept", "The extra cost of an operator that takes a sharded parameter");
  bench::add_flags(*intercept, intercept_arguments);
  bench::OptimArguments optim_arguments;
  auto* optim = app.add_subcommand(
      "optim", "Steps of the optimizers, compared with those of torch::optim and with a copy in memory");
  bench::add_flags(*optim, optim_arguments);
  bench::ScalingArguments scaling_arguments;
  auto* scaling =
      app.add_subcommand("scaling", "The cost of a group, a nested group and a parameter in models of growing size");
  bench::add_flags(*scaling, scaling_arguments);
  bench::ScaleArguments scale_arguments;
  auto* scale = app.add_subcommand("scale", "Simulation of large jobs: what a step costs a rank besides its data");
  bench::add_flags(*scale, scale_arguments);
  bench::OverheadArguments overhead_arguments;
  auto* overhead =
      app.add_subcommand("overhead", "The host time that a group adds to a step, compared with the unsharded model");
  bench::add_flags(*overhead, overhead_arguments);
  bench::ScheduleArguments schedule_arguments;
  auto* schedule =
      app.add_subcommand("schedule", "What each rank of a pipeline does at which time, simulated or measured");
  bench::add_flags(*schedule, schedule_arguments);
  bench::ActivationsArguments activations_arguments;
  auto* activations = app.add_subcommand(
      "activations", "Memory that a step of a GPT takes besides its parameters if ranks split sequences or layers");
  bench::add_flags(*activations, activations_arguments);
  bench::AttentionArguments attention_arguments;
  auto* attention =
      app.add_subcommand("attention", "Attention of one sequence over ranks, compared with ranks that compute alone");
  bench::add_flags(*attention, attention_arguments);
  bench::CheckpointArguments checkpoint_arguments;
  auto* checkpoint =
      app.add_subcommand("checkpoint", "Saving and loading checkpoints, compared with plain files of the same size");
  bench::add_flags(*checkpoint, checkpoint_arguments);
  bench::DeferredArguments deferred_arguments;
  auto* deferred =
      app.add_subcommand("deferred", "Memory of a large model that is built with deferred_init, saved and loaded");
  bench::add_flags(*deferred, deferred_arguments);
  bench::OffloadArguments offload_arguments;
  auto* offload =
      app.add_subcommand("offload", "Steps of a model whose training state is in files, compared with plain files");
  bench::add_flags(*offload, offload_arguments);
  return frame::run_program(app, argc, argv, [&] {
    if (step->parsed()) {
      bench::run_as_ranks(step_arguments, step_arguments.versus.empty() ? bench::run_step : bench::run_versus);
    }
    if (collectives->parsed()) bench::run_as_ranks(collectives_arguments, bench::run_collectives);
    if (intercept->parsed()) bench::run_intercept(intercept_arguments);
    if (offload->parsed()) bench::run_as_ranks(offload_arguments, bench::run_offload);
    if (optim->parsed()) bench::run_optim(optim_arguments);
    if (deferred->parsed()) bench::run_as_ranks(deferred_arguments, bench::run_deferred);
    if (scaling->parsed()) bench::run_as_ranks(scaling_arguments, bench::run_scaling);
    if (scale->parsed()) bench::run_scale(scale_arguments);
    if (overhead->parsed()) bench::run_as_ranks(overhead_arguments, bench::run_overhead);
    if (schedule->parsed())
      schedule_arguments.measure > 0 ? bench::measure_schedule(schedule_arguments)
                                     : bench::run_schedule(schedule_arguments);
    if (activations->parsed()) bench::run_as_ranks(activations_arguments, bench::run_activations);
    if (attention->parsed()) bench::run_as_ranks(attention_arguments, bench::run_attention);
    if (checkpoint->parsed()) bench::run_as_ranks(checkpoint_arguments, bench::run_checkpoint);
  });
}
