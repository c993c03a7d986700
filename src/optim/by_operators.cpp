#include "optim/by_operators.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>

namespace fsdp::optim {
namespace {

using States = std::vector<at::Tensor>;

at::Tensor with_decay(const at::Tensor& rows, const at::Tensor& gradient, double weight_decay) {
  return weight_decay == 0 ? gradient : gradient.add(rows, weight_decay);
}

void update(const AdamRule& rule, const at::Tensor& rows, const at::Tensor& gradient, const States& states) {
  const auto steps = at::full({}, rule.step, at::TensorOptions().dtype(at::kFloat).device(rows.device()));
  States maxima;
  if (rule.amsgrad) maxima = {states[2]};
  const auto call = [&](const auto& fused) {
    fused(rows, gradient, states[0], states[1], maxima, steps, rule.lr, rule.beta1, rule.beta2, rule.weight_decay,
          rule.eps, rule.amsgrad, /*maximize=*/false, std::nullopt, std::nullopt);
  };
  if (rule.is_decoupled)
    call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

void update(const SgdRule& rule, const at::Tensor& rows, const at::Tensor& gradient, const States& states) {
  at::_fused_sgd_(rows, gradient, states, rule.weight_decay, rule.momentum, rule.lr, rule.dampening, rule.nesterov,
                  /*maximize=*/false, rule.is_first);
}

void update(const RmspropRule& rule, const at::Tensor& rows, at::Tensor gradient, const States& states) {
  gradient = with_decay(rows, gradient, rule.weight_decay);
  const auto& square = states[0];
  square.mul_(rule.alpha).addcmul_(gradient, gradient, 1 - rule.alpha);
  at::Tensor variance = square;
  if (rule.centered) {
    const auto& mean = states[1];
    mean.mul_(rule.alpha).add_(gradient, 1 - rule.alpha);
    variance = square.addcmul(mean, mean, -1);
  }
  const auto root = variance.sqrt().add_(rule.eps);
  if (rule.momentum > 0)
    rows.add_(states.back().mul_(rule.momentum).addcdiv_(gradient, root), -rule.lr);
  else
    rows.addcdiv_(gradient, root, -rule.lr);
}

void update(const AdagradRule& rule, const at::Tensor& rows, at::Tensor gradient, const States& states) {
  gradient = with_decay(rows, gradient, rule.weight_decay);
  const auto& sum = states[0];
  sum.addcmul_(gradient, gradient);
  rows.addcdiv_(gradient, sum.sqrt().add_(rule.eps), -rule.lr);
}

void update(const AdadeltaRule& rule, const at::Tensor& rows, at::Tensor gradient, const States& states) {
  gradient = with_decay(rows, gradient, rule.weight_decay);
  const auto &square = states[0], &change = states[1];
  square.mul_(rule.rho).addcmul_(gradient, gradient, 1 - rule.rho);
  const auto delta = change.add(rule.eps).sqrt_();
  delta.div_(square.add(rule.eps).sqrt_()).mul_(gradient);
  change.mul_(rule.rho).addcmul_(delta, delta, 1 - rule.rho);
  rows.add_(delta, -rule.lr);
}

}  // namespace

void update_by_operators(const FlatRun& run, const Rule& rule, double factor) {
  const auto call = [&](const at::Tensor& rows, const at::Tensor& gradient, const States& states) {
    std::visit([&](const auto& of_kind) { update(of_kind, rows, gradient, states); }, rule);
  };
  if (factor == 1) return call(run.rows, run.gradient, run.states);
  if (run.rows.element_size() >= static_cast<int64_t>(sizeof(float)))
    return call(run.rows, run.gradient.mul(factor), run.states);
  // The rows are fp16 or bf16 here. The scaled gradient could underflow in such a dtype, so it is computed in fp32; the
  // fused operators then need rows and states in fp32 too.
  const auto rows = run.rows.to(at::kFloat);
  States states;
  for (const auto& state : run.states) states.push_back(state.to(at::kFloat));
  call(rows, run.gradient.to(at::kFloat).mul_(factor), states);
  run.rows.copy_(rows);
  for (size_t i = 0; i < states.size(); ++i) run.states[i].copy_(states[i]);
}

}  // namespace fsdp::optim
