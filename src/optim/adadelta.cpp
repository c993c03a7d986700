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

void settle_averages(torch::optim::Optimizer& optimizer, Updates& updates, const std::string& operation) {
  settle<AdadeltaParamState>(optimizer, updates, operation, [](AdadeltaParamState& state, const Update&) {
    return std::array{&state.square_avg(), &state.acc_delta()};
  });
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
    count_steps<AdadeltaParamState, AdadeltaOptions>(*this, updates);
    for_each_run(updates, [&](const FlatRun& run) {
      update_by_adadelta(run.rows, run.gradient, run.states[0], run.states[1],
                         options_of<AdadeltaOptions>(*this, run.first));
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
