#pragma once
/// \file
/// The state of parameters, which torch::optim keeps in a map.

#include "optim/flat_runs.h"
#include "runtime/compat.h"

namespace fsdp::optim {

/// For each group of options, the first one that is equal to it. `Options` is a torch::optim class.
template <class Options>
std::vector<int64_t> equal_options(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<int64_t> firsts;
  for (const auto& group : groups) {
    int64_t first = 0;
    while (!(static_cast<const Options&>(groups[static_cast<size_t>(first)].options()) ==
             static_cast<const Options&>(group.options())))
      ++first;
    firsts.push_back(first);
  }
  return firsts;
}

/// The state of `update`'s parameter, made if there is none. `State` is a torch::optim class.
template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const Update& update) {
  auto& state = optimizer.state()[update.parameter.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

template <class Options>
const Options& options_of(const torch::optim::Optimizer& optimizer, const Update& update) {
  return static_cast<const Options&>(optimizer.param_groups()[update.options].options());
}

/// Each update gets the tensors of its state, as `settle_states` makes or moves them. `places_of(state, update)`: where
/// the state has them.
template <class State, class PlacesOf>
void settle(torch::optim::Optimizer& optimizer, Updates& updates, const std::string& operation,
            const PlacesOf& places_of) {
  for (auto& update : updates)
    for (const at::Tensor* place : places_of(state_of<State>(optimizer, update), update))
      update.states.push_back(*place);
  settle_states(updates, operation);
  for (const auto& update : updates) {
    auto settled = update.states.begin();
    for (at::Tensor* place : places_of(state_of<State>(optimizer, update), update)) *place = *settled++;
  }
}

/// Of updates that divide by `eps`: without it the padding between two parameters would become 0/0.
template <class State, class Options>
void count_steps(torch::optim::Optimizer& optimizer, Updates& updates) {
  const auto equal = equal_options<Options>(optimizer.param_groups());
  for (size_t i = 0; i < updates.size(); ++i) {
    auto& state = state_of<State>(optimizer, updates[i]);
    state.step(state.step() + 1);
    const bool keeps_zeros = options_of<Options>(optimizer, updates[i]).eps() > 0;
    updates[i].recipe = {equal[updates[i].options], state.step(), keeps_zeros ? 0 : static_cast<int64_t>(i)};
  }
}

/// `tensors_of` a state gives its tensors, undefined where there is none.
template <class State, class TensorsOf>
int64_t bytes_of_states(const torch::optim::Optimizer& optimizer, const TensorsOf& tensors_of) {
  int64_t bytes = 0;
  for (const auto& [parameter, state] : optimizer.state())
    for (const at::Tensor& tensor : tensors_of(static_cast<const State&>(*state)))
      if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

/// After loading: `settle` is called with all parameters that have state, each once.
inline void settle_loaded(torch::optim::Optimizer& optimizer, const std::function<void(Updates&)>& settle) {
  const runtime::OwnOperators own_operators;
  auto rounds = rounds_of(optimizer.param_groups(), [&](const at::Tensor& parameter) {
    return optimizer.state().find(parameter.unsafeGetTensorImpl()) != optimizer.state().end();
  });
  auto locks = lock_ranks(rounds);
  if (!rounds.empty()) settle(rounds.front());
}

}  // namespace fsdp::optim
