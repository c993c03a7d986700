#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <cmath>

#include "api/rows.h"
#include "comm/core/check.h"
#include "optim/global_sums.h"
#include "optim/line_search.h"
#include "optim/row_sums.h"
#include "runtime/compat.h"
#include "runtime/registry.h"

namespace fsdp::optim {
namespace {

using State = torch::optim::LBFGSParamState;
using Options = torch::optim::LBFGSOptions;
using LossClosure = torch::optim::Optimizer::LossClosure;

constexpr const char* kOperation = "optim::LBFGS::step";

// All parameters as one vector. This rank has the part of the vector that consists of its rows, parameter by parameter.
class RowVector {
 public:
  explicit RowVector(const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      require(parameter.defined(), kOperation, ": expected parameters, found an undefined tensor");
      const auto part = runtime::registry().find(parameter);
      require(part.has_value() && (!group_ || part->group->placement() == group_->placement()), kOperation,
              ": all parameters must belong to models that are sharded over the same ranks, but one of sizes ",
              parameter.sizes(), " does not. Give such parameters a separate optimizer");
      if (!group_) group_ = part->group;
      const auto& slot = part->group->slots()[part->slot];
      require(!slot.cut(), part->group->where(kOperation),
              "LBFGS does not support parameters that are split over a tensor axis, such as '", slot.name(),
              "'. Use a different optimizer");
      parts_.push_back({parameter, part->group, slot.row_numel(), numel_, slot.rows_numel()});
      numel_ += slot.rows_numel();
    }
    require(group_ != nullptr, kOperation, ": expected parameters, found none");
  }

  const runtime::ParamGroup& group() const { return *group_; }
  /// Throws UsageError if a scope or a backward is open on this rank, and Error if one is open on another rank, so
  /// either every rank steps or none does. Collective.
  void require_at_rest() const {
    const MutexLock lock(group_->rank_state().mutex);
    const auto check = [&]() -> uint8_t {
      for (const auto& part : parts_) part.group->require_at_rest(kOperation);
      return 0;
    };
    answers_of_ranks(group_->placement().process_group(), kOperation, "LBFGS::step", check,
                     [&](Work& work) { group_->rank_state().wait(work); });
  }
  at::TensorOptions options() const { return parts_.front().parameter.detach().options(); }

  at::Tensor gradient() const {
    const runtime::OwnOperators own_operators;
    auto flat = at::zeros({numel_}, options());
    for (const auto& part : parts_) {
      part.group->require_no_waiting_gradients(kOperation);
      if (const auto& gradient = part.parameter.grad(); gradient.defined())
        part.of(flat).copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    }
    return flat;
  }
  at::Tensor values() const {
    const runtime::OwnOperators own_operators;
    auto flat = at::zeros({numel_}, options());
    for (const auto& part : parts_) part.of(flat).copy_(part.parameter.detach());
    return flat;
  }
  void set(const at::Tensor& flat) const {
    for (const auto& part : parts_) part.parameter.detach().copy_(part.of(flat));
  }

  double dot(const at::Tensor& left, const at::Tensor& right) const {
    SignedExactSum sum;
    for (const auto& part : parts_)
      sum.add(sum_of_products(left.narrow(0, part.first, part.numel), right.narrow(0, part.first, part.numel),
                              part.row_numel));
    const MutexLock lock(group_->rank_state().mutex);
    return sum_over_ranks({group_.get()}, sum, "LBFGS::step, dot product");
  }
  double norm(const at::Tensor& vector, double p) const {
    RowsOnAxis axis{{group_.get()}};
    for (const auto& part : parts_) axis.rows.push_back({vector.narrow(0, part.first, part.numel), part.row_numel});
    const MutexLock lock(group_->rank_state().mutex);
    return norm_over_ranks({&axis, 1}, p, str_cat("LBFGS::step, norm ", p));
  }
  // Returns the mean of the ranks' losses, because gradients are averaged over the ranks too. Collective.
  double mean(const at::Tensor& loss) const {
    const auto sum = loss.detach().to(at::kCPU, at::kDouble, /*non_blocking=*/false, /*copy=*/true).reshape({1});
    auto& ranks = group_->placement().process_group();
    const MutexLock lock(group_->rank_state().mutex);
    group_->rank_state().wait(*ranks.communicator().all_reduce(sum, ReduceOp::kSum, {"LBFGS::step, loss", {}}));
    return sum.item<double>() / ranks.world_size();
  }

 private:
  struct Part {
    at::Tensor parameter;
    std::shared_ptr<runtime::ParamGroup> group;
    int64_t row_numel, first, numel;
    at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, first, numel).view(parameter.sizes()); }
  };

  std::shared_ptr<runtime::ParamGroup> group_;
  std::vector<Part> parts_;
  int64_t numel_ = 0;
};

double number(const at::Tensor& scalar) { return scalar.item<double>(); }
at::Tensor scalar_of(double value) { return at::scalar_tensor(value, at::kDouble); }

// Adds to the history how the last iteration changed the gradient and the parameters.
void learn_curvature(State& state, const RowVector& vector, const at::Tensor& gradient, int64_t history_size) {
  const auto change_of_gradient = gradient.sub(state.prev_flat_grad());
  const auto change = state.d().mul(state.t());
  const double curvature = vector.dot(change_of_gradient, change);
  if (curvature <= 1e-10) return;
  if (static_cast<int64_t>(state.old_dirs().size()) == history_size) {
    state.old_dirs().pop_front();
    state.old_stps().pop_front();
    state.ro().pop_front();
  }
  state.old_dirs().push_back(change_of_gradient);
  state.old_stps().push_back(change);
  state.ro().push_back(scalar_of(1.0 / curvature));
  state.H_diag(scalar_of(curvature / vector.dot(change_of_gradient, change_of_gradient)));
}

// Returns the direction: the negative product of the approximate inverse Hessian and the gradient.
at::Tensor direction(const State& state, const RowVector& vector, const at::Tensor& gradient) {
  const size_t count = state.old_dirs().size();
  std::vector<double> weights(count);
  auto result = gradient.neg();
  for (size_t i = count; i-- > 0;) {
    weights[i] = vector.dot(state.old_stps()[i], result) * number(state.ro()[i]);
    result.add_(state.old_dirs()[i], -weights[i]);
  }
  result.mul_(number(state.H_diag()));
  for (size_t i = 0; i < count; ++i) {
    const double weight = vector.dot(state.old_dirs()[i], result) * number(state.ro()[i]);
    result.add_(state.old_stps()[i], weights[i] - weight);
  }
  return result;
}

}  // namespace

at::Tensor LBFGS::step(LossClosure closure) {
  require(closure != nullptr, kOperation, ": expected a closure that evaluates the loss, found none");
  const at::NoGradGuard no_grad;
  const RowVector vector(param_groups_.at(0).params());
  const auto& options = static_cast<const Options&>(param_groups_.at(0).options());
  vector.require_at_rest();
  require(!options.line_search_fn() || *options.line_search_fn() == "strong_wolfe", vector.group().where(kOperation),
          "expected line_search_fn \"strong_wolfe\" or none, found \"", options.line_search_fn().value_or(""), "\"");
  auto& kept = state_[param_groups_.at(0).params().at(0).unsafeGetTensorImpl()];
  if (!kept) kept = std::make_unique<State>();
  auto& state = static_cast<State&>(*kept);

  int64_t evaluations = 0;
  at::Tensor first_loss;
  const auto evaluate = [&] {
    const at::AutoGradMode recording(true);
    const auto loss = closure();
    if (!first_loss.defined()) first_loss = loss;
    ++evaluations;
    state.func_evals(state.func_evals() + 1);
    return vector.mean(loss);
  };
  const auto is_optimal = [&](const at::Tensor& gradient) {
    return vector.norm(gradient, INFINITY) <= options.tolerance_grad();
  };

  double loss = evaluate();
  auto gradient = vector.gradient();
  bool is_done = is_optimal(gradient);
  for (int64_t iteration = 1; !is_done && iteration <= options.max_iter(); ++iteration) {
    state.n_iter(state.n_iter() + 1);
    const bool is_first = state.n_iter() == 1;
    if (is_first)
      state.H_diag(scalar_of(1));
    else
      learn_curvature(state, vector, gradient, options.history_size());
    state.d(direction(state, vector, gradient));
    state.prev_flat_grad(gradient);
    state.prev_loss(loss);
    state.t(is_first ? std::min(1.0, 1.0 / vector.norm(gradient, 1)) * options.lr() : options.lr());
    const double slope = vector.dot(gradient, state.d());
    if (slope > -options.tolerance_change()) break;

    const auto start = vector.values();
    const auto go = [&](double step) { vector.set(start.add(state.d(), step)); };
    if (options.line_search_fn()) {
      const auto found =
          search_strong_wolfe({0, loss, slope, gradient}, state.t(), vector.norm(state.d(), INFINITY),
                              options.tolerance_change(), [&](double step) {
                                go(step);
                                const double there = evaluate();
                                const auto gradient_there = vector.gradient();
                                return Trial{step, there, vector.dot(gradient_there, state.d()), gradient_there};
                              });
      go(found.trial.step);
      state.t(found.trial.step);
      loss = found.trial.loss;
      gradient = found.trial.gradient;
    } else {
      go(state.t());
      // The loss and the gradient after the last step are not evaluated, because nothing would use them.
      if (iteration == options.max_iter()) break;
      loss = evaluate();
      gradient = vector.gradient();
    }
    is_done = evaluations >= options.max_eval().value_or(options.max_iter() * 5 / 4) || is_optimal(gradient) ||
              vector.norm(state.d(), INFINITY) * std::abs(state.t()) <= options.tolerance_change() ||
              std::abs(loss - state.prev_loss()) < options.tolerance_change();
  }
  return first_loss;
}

}  // namespace fsdp::optim
