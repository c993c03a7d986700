#include <ATen/ops/full.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/scaled_step.h>

#include <algorithm>

#include "amp/loss_scale.h"
#include "amp/unscale.h"
#include "comm/core/check.h"

namespace fsdp {

GradScaler::GradScaler(const GradScalerOptions& options)
    : enabled_(options.enabled),
      process_group_(options.process_group),
      state_{options.init_scale, options.growth_factor, options.backoff_factor, options.growth_interval, 0} {
  if (enabled_) state_ = amp::checked(state_, "[fsdp] GradScaler: ");
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!enabled_) return outputs;
  has_scaled_ = true;
  // In fp16 the scaled loss might overflow. The scale is an fp32 tensor of 0 dims, so type promotion makes its product
  // with a scalar fp16 loss fp32.
  return outputs.mul(at::full({}, state_.scale, at::TensorOptions().dtype(at::kFloat).device(outputs.device())));
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const auto& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

at::Tensor GradScaler::find_inf(const torch::optim::Optimizer& optimizer, bool divides, const char* operation) {
  const auto [has_scaled, found_inf] =
      amp::unscale(optimizer, {operation, state_.scale, divides, has_scaled_, process_group_});
  if (!has_scaled)
    require(false, amp::where_of(optimizer, operation),
            "no loss has been scaled yet, so gradients would be divided by a scale that was never applied. Call "
            "scale(loss).backward() first");
  has_scaled_ = true;
  return found_inf;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!enabled_) return;
  const char* operation = "GradScaler::unscale_";
  auto& iteration = iterations_[&optimizer];
  if (iteration.stage != Stage::kReady)
    require(false, amp::where_of(optimizer, operation),
            iteration.stage == Stage::kUnscaled
                ? "unscale_ was already called for this optimizer since the last update()"
                : "unscale_ was called after step() for this optimizer",
            ", and the gradients would be divided twice. Call unscale_ once per iteration, before step(), and end the "
            "iteration with update()");
  iteration.found_inf = find_inf(optimizer, /*divides=*/true, operation);
  iteration.stage = Stage::kUnscaled;
}

bool GradScaler::has_inf(Iteration& iteration) {
  if (!iteration.is_inf) iteration.is_inf = iteration.found_inf.item<float>() > 0;
  return *iteration.is_inf;
}

at::Tensor GradScaler::step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure) {
  if (!enabled_) return optimizer.step(std::move(closure));
  const char* operation = "GradScaler::step";
  const auto where = [&] { return amp::where_of(optimizer, operation); };
  if (closure)
    require(false, where(),
            "closures are not supported, because the gradients that a closure computes would not be checked. Run "
            "forward and backward first, or construct the scaler with enabled = false");
  auto& iteration = iterations_[&optimizer];
  if (iteration.stage == Stage::kStepped)
    require(false, where(),
            "step was already called for this optimizer since the last update(). End the iteration with update()");
  auto* scaled = iteration.stage == Stage::kReady ? dynamic_cast<optim::ScaledStep*>(&optimizer) : nullptr;
  if (iteration.stage == Stage::kReady) {
    iteration.found_inf = find_inf(optimizer, /*divides=*/!scaled, operation);
    if (!scaled) iteration.stage = Stage::kUnscaled;
  }
  if (!iteration.found_inf.defined())
    require(false, where(), "none of the optimizer's parameters has a gradient. Call scale(loss).backward() first");
  at::Tensor loss;
  if (!has_inf(iteration)) loss = scaled ? scaled->step_scaled(amp::inverse_of(state_.scale)) : optimizer.step();
  iteration.stage = Stage::kStepped;
  return loss;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled_) return;
  const std::string where = "[fsdp] GradScaler::update: ";
  require(has_scaled_, where, "no loss has been scaled yet. Call scale(loss).backward() first");
  auto next = state_;
  if (new_scale) {
    next.scale = *new_scale;
    next = amp::checked(next, where);
  } else {
    bool was_checked = false, found_inf = false;
    for (auto& [optimizer, iteration] : iterations_) {
      if (!iteration.found_inf.defined()) continue;
      was_checked = true;
      found_inf |= has_inf(iteration);
    }
    require(was_checked, where,
            "no gradients have been checked since the last update(). Call GradScaler::step(optimizer) or "
            "unscale_(optimizer) first");
    next = amp::updated(state_, found_inf);
  }
  state_ = next;
  iterations_.clear();
}

double GradScaler::get_scale() const { return enabled_ ? state_.scale : 1.0; }

void GradScaler::load(const GradScalerState& state) {
  if (!enabled_) return;
  state_ = amp::checked(state, "[fsdp] GradScaler::load: ");
  iterations_.clear();
  has_scaled_ = false;
}

}  // namespace fsdp
