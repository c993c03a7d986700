#pragma once
/// \file
/// The state of learning-rate schedulers, which LibTorch does not save.

#include <torch/optim/schedulers/lr_scheduler.h>

#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// Returns a scheduler's state as JSON: the number of `step` calls, which is all that torch::optim::LRScheduler and
/// StepLR store. Fields of your own subclass are not included. Learning rates are options of the optimizer and saved
/// with it. Not collective.
///
///     torch::optim::StepLR scheduler(optimizer, 1000, 0.5);
///     fsdp::save_checkpoint("runs/a", model, &optimizer, {.states = {{"scheduler", fsdp::state_of(scheduler)}}});
std::string state_of(const torch::optim::LRScheduler& scheduler);

/// Restores the state of a scheduler with the same settings, so its next `step` continues the schedule. Load the
/// optimizer too. Not collective. Throws Error for other text.
///
///     const auto loaded = fsdp::load_checkpoint("runs/a", model, &optimizer);
///     fsdp::load_state(scheduler, loaded.states.at("scheduler"));
void load_state(torch::optim::LRScheduler& scheduler, const std::string& state);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
