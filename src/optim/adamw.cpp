#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <fsdp/optim.h>

#include "optim/param_states.h"

namespace fsdp::optim {
namespace {

using State = torch::optim::AdamWParamState;
using Options = torch::optim::AdamWOptions;

void settle_moments(torch::optim::Optimizer& optimizer, Updates& updates, const std::string& operation) {
  settle<State>(optimizer, updates, operation, [&](State& state, const Update& update) {
    std::vector<at::Tensor*> places{&state.exp_avg(), &state.exp_avg_sq()};
    if (options_of<Options>(optimizer, update).amsgrad()) places.push_back(&state.max_exp_avg_sq());
    return places;
  });
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
    settle_moments(*this, updates, operation);
    count_steps<State, Options>(*this, updates);
    for_each_run(updates, [&](const FlatRun& run) {
      update_run(run, options_of<Options>(*this, run.first), state_of<State>(*this, run.first).step());
    });
  });
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::AdamW::load(archive);
  settle_loaded(*this, [&](Updates& updates) { settle_moments(*this, updates, "optim::AdamW::load"); });
}

int64_t AdamW::state_bytes() const {
  return bytes_of_states<State>(*this, [](const State& state) {
    return std::array{state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
  });
}

}  // namespace fsdp::optim
