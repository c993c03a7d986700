#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <fsdp/optim.h>

#include "optim/param_states.h"

namespace fsdp::optim {
namespace {

using State = torch::optim::AdamWParamState;
using Options = torch::optim::AdamWOptions;

const Options& options_of(const torch::optim::Optimizer& optimizer, const Update& update) {
  return static_cast<const Options&>(optimizer.param_groups()[update.options].options());
}

void settle(torch::optim::Optimizer& optimizer, Updates& updates, const std::string& operation) {
  for (auto& update : updates) {
    const auto& state = state_of<State>(optimizer, update);
    update.states = {state.exp_avg(), state.exp_avg_sq()};
    if (options_of(optimizer, update).amsgrad()) update.states.push_back(state.max_exp_avg_sq());
  }
  settle_states(updates, operation);
  for (const auto& update : updates) {
    auto& state = state_of<State>(optimizer, update);
    state.exp_avg(update.states[0]);
    state.exp_avg_sq(update.states[1]);
    if (update.states.size() > 2) state.max_exp_avg_sq(update.states[2]);
  }
}

void count_steps(torch::optim::Optimizer& optimizer, Updates& updates) {
  const auto equal = equal_options<Options>(optimizer.param_groups());
  for (size_t i = 0; i < updates.size(); ++i) {
    auto& state = state_of<State>(optimizer, updates[i]);
    state.step(state.step() + 1);
    // Without eps the padding between two parameters would become 0/0.
    const bool keeps_zeros = options_of(optimizer, updates[i]).eps() > 0;
    updates[i].recipe = {equal[updates[i].options], state.step(), keeps_zeros ? 0 : static_cast<int64_t>(i)};
  }
}

void update_run(const FlatRun& run, const Options& options, int64_t step) {
  const auto on_device = at::TensorOptions().dtype(at::kFloat).device(run.rows.device());
  const auto steps = at::full({}, step, on_device);
  std::vector<at::Tensor> maxima;
  if (options.amsgrad()) maxima = {run.states[2]};
  const auto [beta1, beta2] = options.betas();
  at::_fused_adamw_({run.rows}, {run.gradient}, {run.states[0]}, {run.states[1]}, maxima, {steps}, options.lr(), beta1,
                    beta2, options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
}

}  // namespace

at::Tensor AdamW::step(LossClosure closure) {
  const std::string operation = "optim::AdamW::step";
  return take_step(operation, closure, param_groups(), [&](Updates& updates) {
    settle(*this, updates, operation);
    count_steps(*this, updates);
    for_each_run(updates, [&](const FlatRun& run) {
      update_run(run, options_of(*this, run.first), state_of<State>(*this, run.first).step());
    });
  });
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::AdamW::load(archive);
  settle_loaded(*this, [&](Updates& updates) { settle(*this, updates, "optim::AdamW::load"); });
}

int64_t AdamW::state_bytes() const {
  return bytes_of_states<State>(*this, [](const State& state) {
    return std::array{state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
  });
}

}  // namespace fsdp::optim
