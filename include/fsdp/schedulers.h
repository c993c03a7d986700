#pragma once
/// \file
/// The state of learning-rate schedulers, which LibTorch does not save.

#include <torch/optim/schedulers/lr_scheduler.h>

#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// JSON: how often `step` was called, which is all that torch::optim::LRScheduler and StepLR keep; what a class of
/// one's own keeps beside it is not there. The learning rates that they set are options of the optimizer and saved
/// with it. Not collective.
///
///     torch::optim::StepLR scheduler(optimizer, 1000, 0.5);
///     fsdp::save_checkpoint("runs/a", model, &optimizer, {.states = {{"scheduler", fsdp::state_of(scheduler)}}});
std::string state_of(const torch::optim::LRScheduler& scheduler);

/// Gives a scheduler of the same settings that state: its next `step` is what it would have been. Load the optimizer
/// too. Not collective. Throws Error for another text.
///
///     const auto loaded = fsdp::load_checkpoint("runs/a", model, &optimizer);
///     fsdp::load_state(scheduler, loaded.states.at("scheduler"));
void load_state(torch::optim::LRScheduler& scheduler, const std::string& state);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
