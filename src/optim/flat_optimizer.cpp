#include <fsdp/flat_optimizer.h>

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "comm/core/text.h"
#include "optim/by_operators.h"
#include "optim/kinds.h"
#include "optim/one_pass.h"
#include "optim/state_tensors.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::optim {
namespace {

template <class Options>
std::string operation_of(const char* function) {
  return str_cat("optim::", Kind<Options>::kName, "::", function);
}

template <class Options>
const Options& checked(const Options& options) {
  Kind<Options>::check(options, {Kind<Options>::kName});
  return options;
}

// Every step calls this function, because users may have added parameter groups or changed options.
template <class Options>
void check_all(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (const auto& group : groups) checked(static_cast<const Options&>(group.options()));
}

// Returns, for each parameter group, the index of the first group with equal options.
template <class Options>
std::vector<int64_t> equal_options(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<int64_t> firsts;
  for (const auto& group : groups) {
    size_t first = 0;
    while (!(static_cast<const Options&>(groups[first].options()) == static_cast<const Options&>(group.options())))
      ++first;
    firsts.push_back(static_cast<int64_t>(first));
  }
  return firsts;
}

template <class Options>
const Options& options_of(const torch::optim::Optimizer& optimizer, const Update& update) {
  return static_cast<const Options&>(optimizer.param_groups()[update.options].options());
}

// Returns the optimizer's state of `update.parameter`. Creates it if it does not exist.
template <class Options>
auto& state_of(torch::optim::Optimizer& optimizer, const Update& update) {
  using State = typename Kind<Options>::State;
  auto& state = optimizer.state()[update.parameter.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

void require_state_options(const Update& update, const StateOptions& options, const std::string& operation) {
  if (!options.state_dtype && !options.stochastic_rounding) return;
  require(update.rows.is_cpu(), where(update, operation), name_of(update), " is on ", update.rows.device(),
          ", but StateOptions other than the defaults need rows on the CPU. Leave out the StateOptions");
  const auto state_dtype = options.state_dtype.value_or(update.rows.scalar_type());
  require(
      !options.stochastic_rounding || update.rows.scalar_type() == at::kBFloat16 || state_dtype == at::kBFloat16,
      where(update, operation), name_of(update), " is ", update.rows.scalar_type(), " and its state is ", state_dtype,
      ", but stochastic rounding needs a parameter or a state in bf16. Leave StateOptions::stochastic_rounding out");
}

template <class Options>
void require_possible(const torch::optim::Optimizer& optimizer, const Update& update, const StateOptions& state_options,
                      const std::string& operation) {
  using Kind = Kind<Options>;
  require_state_options(update, state_options, operation);
  const auto& options = options_of<Options>(optimizer, update);
  const auto dtype = state_options.state_dtype.value_or(update.rows.scalar_type());
  if (!Kind::takes_short_state(options) && c10::elementSize(dtype) < sizeof(float))
    require(false, where(update, operation), name_of(update), " would have state in ", dtype,
            ", in which the variance of a centered ", Kind::kName,
            " could become negative. Set StateOptions::state_dtype to kFloat, or turn centered off");
  const auto found = optimizer.state().find(update.parameter.unsafeGetTensorImpl());
  if (found == optimizer.state().end() || !found->second || !Kind::keeps_state(options)) return;
  for (const auto* state : Kind::kept(static_cast<typename Kind::State&>(*found->second), options))
    if (state->defined() && state->sizes() != update.rows.sizes())
      require(false, where(update, operation), name_of(update), " has optimizer state of the wrong sizes: expected ",
              update.rows.sizes(), ", found ", state->sizes(),
              ". Load what this rank saved, with the same number of ranks and the same groups");
}

// Sets the updates' states. `place_states` creates or moves the state tensors, and the optimizer gets the new ones.
template <class Options>
void prepare_states(torch::optim::Optimizer& optimizer, Updates& updates, const StateOptions& state_options) {
  using Kind = Kind<Options>;
  const auto for_each_kept = [&](const auto& act) {
    for (auto& update : updates) {
      const auto& options = options_of<Options>(optimizer, update);
      if (Kind::keeps_state(options)) act(update, Kind::kept(state_of<Options>(optimizer, update), options));
    }
  };
  for_each_kept([](Update& update, const std::vector<at::Tensor*>& places) {
    for (const auto* place : places) update.states.push_back(*place);
    update.is_new = std::any_of(places.begin(), places.end(), [](const auto* place) { return !place->defined(); });
  });
  const double initial = Kind::initial(static_cast<const Options&>(optimizer.defaults()));
  place_states(updates, {.dtype = state_options.state_dtype, .initial = initial});
  for_each_kept([](Update& update, const std::vector<at::Tensor*>& places) {
    for (size_t i = 0; i < places.size(); ++i) *places[i] = update.states[i];
  });
}

// Counts a step of each parameter and sets the updates' kernel keys, which include what Kind::count returns. If a step
// would not map zeros to zeros, no two updates share a run, because a run includes padding, which must stay zero.
template <class Options>
void count_steps(torch::optim::Optimizer& optimizer, Updates& updates) {
  using Kind = Kind<Options>;
  const auto equal = equal_options<Options>(optimizer.param_groups());
  for (size_t i = 0; i < updates.size(); ++i) {
    auto& update = updates[i];
    const auto& options = options_of<Options>(optimizer, update);
    const int64_t count =
        Kind::keeps_state(options) ? Kind::count(state_of<Options>(optimizer, update), update.is_new) : 0;
    update.kernel_key = {equal[update.options], count, Kind::keeps_zeros(options) ? 0 : static_cast<int64_t>(i)};
  }
}

void update_run(const FlatRun& run, const Rule& rule, const StepOptions& options, int64_t step, const char* name) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) record.before(name);
  if (run.rows.is_cpu())
    update_in_one_pass(run, rule, options, step);
  else
    update_by_operators(run, rule, options.factor);
}

}  // namespace

FlatOptimizer::FlatOptimizer(const StateOptions& state_options) : state_options_(state_options) {
  const auto& dtype = state_options.state_dtype;
  require(!dtype || dtype == at::kFloat || dtype == at::kBFloat16,
          "[fsdp] optim::StateOptions: expected state_dtype kFloat or kBFloat16, found ",
          dtype.value_or(at::ScalarType::Undefined), ".");
}

// The constructor adds the groups itself, because torch::optim::Adagrad's constructor would allocate state for them.
template <class Torchs, class Options>
Flat<Torchs, Options>::Flat(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
                            const StateOptions& state_options)
    : Torchs(std::vector<torch::optim::OptimizerParamGroup>(), checked(defaults)), FlatOptimizer(state_options) {
  for (const auto& group : groups) this->add_param_group(group);
  check_all<Options>(this->param_groups());
}

template <class Torchs, class Options>
Flat<Torchs, Options>::Flat(std::vector<at::Tensor> parameters, Options defaults, const StateOptions& state_options)
    : Flat({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults), state_options) {}

template <class Torchs, class Options>
at::Tensor Flat<Torchs, Options>::step(Closure closure) {
  return step_scaled(1, std::move(closure));
}

template <class Torchs, class Options>
at::Tensor Flat<Torchs, Options>::step_scaled(double factor, Closure closure) {
  using Kind = Kind<Options>;
  const auto operation = operation_of<Options>("step");
  const auto name = str_cat("fsdp::optim::", Kind::kName);
  require(std::isfinite(factor) && factor >= 0, "[fsdp] ", operation,
          "_scaled: expected a gradient factor that is finite and at least 0, found ", factor,
          ". If any rank has a gradient that is not finite, skip the step on every rank");
  check_all<Options>(this->param_groups());
  const auto check = [&](const Update& update) {
    require_possible<Options>(*this, update, state_options(), operation);
  };
  const auto update_round = [&](Updates& updates) {
    prepare_states<Options>(*this, updates, state_options());
    count_steps<Options>(*this, updates);
    ++steps_;
    for_each_run(updates, [&](const FlatRun& run) {
      const int64_t count = run.first().kernel_key[1];
      update_run(run, Kind::rule(options_of<Options>(*this, run.first()), count), {factor, state_options()},
                 Kind::kCountsSteps ? count : steps_, name.c_str());
    });
  };
  return take_step(operation, closure, this->param_groups(), {.check = check, .update_round = update_round});
}

template <class Torchs, class Options>
void Flat<Torchs, Options>::load(torch::serialize::InputArchive& archive) {
  Torchs::load(archive);
  const runtime::OwnOperators own_operators;
  auto rounds = rounds_of(this->param_groups(), [&](const at::Tensor& parameter) {
    return this->state().find(parameter.unsafeGetTensorImpl()) != this->state().end();
  });
  const auto locks = runtime::lock_ranks(groups_of(rounds));
  if (rounds.empty()) return;
  auto& updates = rounds.front();  // a parameter that is listed several times has one state
  const auto operation = operation_of<Options>("load");
  for (const auto& update : updates) require_possible<Options>(*this, update, state_options(), operation);
  prepare_states<Options>(*this, updates, state_options());
}

template <class Torchs, class Options>
int64_t Flat<Torchs, Options>::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& [parameter, state] : this->state())
    for (const auto* tensor : tensors_of(*state))
      if (tensor->defined()) bytes += static_cast<int64_t>(tensor->nbytes());
  return bytes;
}

template class Flat<torch::optim::AdamW, torch::optim::AdamWOptions>;
template class Flat<torch::optim::Adam, torch::optim::AdamOptions>;
template class Flat<torch::optim::SGD, torch::optim::SGDOptions>;
template class Flat<torch::optim::RMSprop, torch::optim::RMSpropOptions>;
template class Flat<torch::optim::Adagrad, torch::optim::AdagradOptions>;
template class Flat<AdadeltaBase, AdadeltaOptions>;

}  // namespace fsdp::optim
