#pragma once
/// \file
/// Each optimizer of fsdp::optim, with options that use all its features.

#include <fsdp/optim.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::test {

/// An optimizer of any kind, as both of its base classes.
struct AnyOptimizer {
  std::unique_ptr<torch::optim::Optimizer> torchs;
  optim::FlatOptimizer* flat = nullptr;
};

struct OptimizerCase {
  std::string name;
  std::function<AnyOptimizer(std::vector<at::Tensor>, const optim::StateOptions&)> make;
  /// Number of state values per element.
  int states = 0;
  bool is_centered = false;

  bool takes(at::ScalarType rows, const optim::StateOptions& state) const {
    return !is_centered || c10::elementSize(state.state_dtype.value_or(rows)) >= 4;
  }
};

template <class Optimizer>
OptimizerCase optimizer_case(const char* name, const typename Optimizer::Options& options, int states,
                             bool is_centered = false) {
  return {name,
          [options](std::vector<at::Tensor> parameters, const optim::StateOptions& state) {
            auto made = std::make_unique<Optimizer>(std::move(parameters), options, state);
            auto* flat = made.get();
            return AnyOptimizer{std::move(made), flat};
          },
          states, is_centered};
}

inline const std::vector<OptimizerCase>& every_optimizer() {
  using namespace torch::optim;
  static const std::vector<OptimizerCase> all{
      optimizer_case<optim::AdamW>("AdamW", AdamWOptions(0.01).weight_decay(0.1), 2),
      optimizer_case<optim::AdamW>("AdamW with amsgrad", AdamWOptions(0.01).amsgrad(true), 3),
      optimizer_case<optim::Adam>("Adam", AdamOptions(0.01).weight_decay(0.1), 2),
      optimizer_case<optim::SGD>("SGD", SGDOptions(0.05), 0),
      optimizer_case<optim::SGD>("SGD with momentum", SGDOptions(0.05).momentum(0.9).nesterov(true), 1),
      optimizer_case<optim::RMSprop>("RMSprop", RMSpropOptions(0.01), 1),
      optimizer_case<optim::RMSprop>("centered RMSprop with momentum",
                                     RMSpropOptions(0.01).eps(1e-3).centered(true).momentum(0.9), 3, true),
      optimizer_case<optim::Adagrad>("Adagrad", AdagradOptions(0.05).lr_decay(0.1).initial_accumulator_value(0.1), 1),
      optimizer_case<optim::Adadelta>("Adadelta", optim::AdadeltaOptions(0.5), 2)};
  return all;
}

}  // namespace fsdp::test
