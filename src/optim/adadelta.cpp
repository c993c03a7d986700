#include <fsdp/optim.h>
#include <torch/optim/serialize.h>

#include "comm/core/check.h"
#include "optim/adadelta_kernel.h"
#include "optim/param_states.h"

namespace fsdp::optim {
namespace {

const AdadeltaOptions& checked(const AdadeltaOptions& options) {
  const auto is_at_least_0 = [](double value, const char* name) {
    require(value >= 0, "[fsdp] optim::Adadelta: expected ", name, " of at least 0, found ", value, ".");
  };
  is_at_least_0(options.lr(), "lr");
  is_at_least_0(options.eps(), "eps");
  is_at_least_0(options.weight_decay(), "weight_decay");
  require(options.rho() >= 0 && options.rho() <= 1, "[fsdp] optim::Adadelta: expected rho from 0 to 1, found ",
          options.rho(), ".");
  return options;
}

const AdadeltaOptions& adadelta_options_of(const torch::optim::Optimizer& optimizer, const Update& update) {
  return static_cast<const AdadeltaOptions&>(optimizer.param_groups()[update.options].options());
}

void settle_averages(torch::optim::Optimizer& optimizer, Updates& updates, const std::string& operation) {
  for (auto& update : updates) {
    const auto& state = state_of<AdadeltaParamState>(optimizer, update);
    update.states = {state.square_avg(), state.acc_delta()};
  }
  settle_states(updates, operation);
  for (const auto& update : updates) {
    auto& state = state_of<AdadeltaParamState>(optimizer, update);
    state.square_avg(update.states[0]);
    state.acc_delta(update.states[1]);
  }
}

// Steps are counted as in Python, for what reads the state; the arithmetic does not need them.
void count_adadelta_steps(torch::optim::Optimizer& optimizer, Updates& updates) {
  const auto equal = equal_options<AdadeltaOptions>(optimizer.param_groups());
  for (size_t i = 0; i < updates.size(); ++i) {
    auto& state = state_of<AdadeltaParamState>(optimizer, updates[i]);
    state.step(state.step() + 1);
    // Without eps the padding between two parameters would become 0/0.
    const bool keeps_zeros = adadelta_options_of(optimizer, updates[i]).eps() > 0;
    updates[i].recipe = {equal[updates[i].options], 0, keeps_zeros ? 0 : static_cast<int64_t>(i)};
  }
}

}  // namespace

Adadelta::Adadelta(const std::vector<torch::optim::OptimizerParamGroup>& groups, const AdadeltaOptions& defaults)
    : Optimizer(groups, std::make_unique<AdadeltaOptions>(checked(defaults))) {
  for (const auto& group : param_groups()) checked(static_cast<const AdadeltaOptions&>(group.options()));
}

Adadelta::Adadelta(std::vector<at::Tensor> parameters, const AdadeltaOptions& defaults)
    : Adadelta({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults) {}

at::Tensor Adadelta::step(LossClosure closure) {
  const std::string operation = "optim::Adadelta::step";
  return take_step(operation, closure, param_groups(), [&](Updates& updates) {
    settle_averages(*this, updates, operation);
    count_adadelta_steps(*this, updates);
    for_each_run(updates, [&](const FlatRun& run) {
      update_by_adadelta(run.rows, run.gradient, run.states[0], run.states[1], adadelta_options_of(*this, run.first));
    });
  });
}

void Adadelta::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
  settle_loaded(*this, [&](Updates& updates) { settle_averages(*this, updates, "optim::Adadelta::load"); });
}

int64_t Adadelta::state_bytes() const {
  return bytes_of_states<AdadeltaParamState>(
      *this, [](const AdadeltaParamState& state) { return std::array{state.square_avg(), state.acc_delta()}; });
}

}  // namespace fsdp::optim
