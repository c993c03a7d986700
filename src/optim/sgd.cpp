#include <ATen/ops/_fused_sgd.h>
#include <fsdp/optim.h>

#include "optim/param_states.h"

namespace fsdp::optim {
namespace {

using State = torch::optim::SGDParamState;
using Options = torch::optim::SGDOptions;

// The second number of the recipe is whether the momentum is new. Without momentum no state is made, as by
// torch::optim.
void settle(torch::optim::Optimizer& optimizer, Updates& updates, const std::string& operation) {
  const auto equal = equal_options<Options>(optimizer.param_groups());
  for (auto& update : updates) {
    update.recipe = {equal[update.options], 0, 0};
    if (options_of<Options>(optimizer, update).momentum() == 0) continue;
    update.states = {state_of<State>(optimizer, update).momentum_buffer()};
    update.recipe[1] = update.states[0].defined() ? 0 : 1;
  }
  settle_states(updates, operation);
  for (const auto& update : updates)
    if (!update.states.empty()) state_of<State>(optimizer, update).momentum_buffer(update.states[0]);
}

// On the CPU the fused kernel leaves most elements of 16-bit parameters as they were (pytorch issue 191763).
bool is_fused_kernel_right(const at::Tensor& rows) { return !rows.is_cpu() || rows.element_size() > 2; }

void update_by_operators(const FlatRun& run, const Options& options) {
  auto step = options.weight_decay() == 0 ? run.gradient : run.gradient.add(run.rows, options.weight_decay());
  if (options.momentum() != 0) {
    const auto& momentum = run.states[0];
    if (run.first.recipe[1] == 1)
      momentum.copy_(step);
    else
      momentum.mul_(options.momentum()).add_(step, 1 - options.dampening());
    step = options.nesterov() ? step.add(momentum, options.momentum()) : momentum;
  }
  run.rows.add_(step, -options.lr());
}

void update_run(const FlatRun& run, const Options& options) {
  if (!is_fused_kernel_right(run.rows)) return update_by_operators(run, options);
  at::_fused_sgd_({run.rows}, {run.gradient}, run.states, options.weight_decay(), options.momentum(), options.lr(),
                  options.dampening(), options.nesterov(), /*maximize=*/false,
                  /*is_first_step=*/run.first.recipe[1] == 1);
}

}  // namespace

at::Tensor SGD::step(LossClosure closure) {
  const std::string operation = "optim::SGD::step";
  return take_step(operation, closure, param_groups(), [&](Updates& updates) {
    settle(*this, updates, operation);
    for_each_run(updates, [&](const FlatRun& run) { update_run(run, options_of<Options>(*this, run.first)); });
  });
}

void SGD::load(torch::serialize::InputArchive& archive) {
  torch::optim::SGD::load(archive);
  settle_loaded(*this, [&](Updates& updates) { settle(*this, updates, "optim::SGD::load"); });
}

int64_t SGD::state_bytes() const {
  return bytes_of_states<State>(*this, [](const State& state) { return std::array{state.momentum_buffer()}; });
}

}  // namespace fsdp::optim
