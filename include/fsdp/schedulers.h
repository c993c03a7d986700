#pragma once
/// \file
/// Saving and loading of the state of learning-rate schedulers, which LibTorch does not save.

#include <torch/optim/schedulers/lr_scheduler.h>

#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// Returns a scheduler's state as JSON: the number of `step` calls, which is all the state that
/// torch::optim::LRScheduler and StepLR have. Fields of a subclass of your own are not included. Learning rates are
/// options of the optimizer and are saved with the optimizer. Not collective.
///
///     torch::optim::StepLR scheduler(optimizer, 1000, 0.5);
///     fsdp::save_checkpoint("runs/a", model, &optimizer, {.states = {{"scheduler", fsdp::state_of(scheduler)}}});
std::string state_of(const torch::optim::LRScheduler& scheduler);

/// Restores the state that `state_of` returned for a scheduler with the same settings, so that the next `step`
/// continues the schedule. Load the optimizer too, which has the learning rates. Not collective. Throws Error if
/// `state` is not a text that `state_of` returned.
///
///     const auto loaded = fsdp::load_checkpoint("runs/a", model, &optimizer);
///     fsdp::load_state(scheduler, loaded.states.at("scheduler"));
void load_state(torch::optim::LRScheduler& scheduler, const std::string& state);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
