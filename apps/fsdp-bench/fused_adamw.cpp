#include "fused_adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace bench {
namespace {

constexpr double kLearningRate = 1e-3, kBeta1 = 0.9, kBeta2 = 0.999, kWeightDecay = 1e-2, kEps = 1e-8;

}  // namespace

FusedAdamW::FusedAdamW(std::vector<at::Tensor> parameters) {
  const c10::AutoGradMode no_grad(false);
  for (auto& parameter : parameters) {
    auto rows = parameter.detach();
    slots_.push_back({.parameter = std::move(parameter),
                      .first_moment = at::zeros_like(rows),
                      .second_moment = at::zeros_like(rows),
                      .steps = at::zeros({}, at::kFloat)});
  }
}

void FusedAdamW::step() {
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> parameters, gradients, first_moments, second_moments, steps;
  for (auto& slot : slots_) {
    if (!slot.parameter.grad().defined()) continue;
    slot.steps.add_(1);
    parameters.push_back(slot.parameter);
    gradients.push_back(slot.parameter.grad());
    first_moments.push_back(slot.first_moment);
    second_moments.push_back(slot.second_moment);
    steps.push_back(slot.steps);
  }
  at::_fused_adamw_(parameters, gradients, first_moments, second_moments, /*max_exp_avg_sqs=*/{}, steps, kLearningRate,
                    kBeta1, kBeta2, kWeightDecay, kEps, /*amsgrad=*/false, /*maximize=*/false);
}

void FusedAdamW::zero_grad() {
  for (auto& slot : slots_) slot.parameter.mutable_grad().reset();
}

int64_t FusedAdamW::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& slot : slots_) {
    for (const auto* tensor : {&slot.first_moment, &slot.second_moment, &slot.steps}) {
      bytes += static_cast<int64_t>(tensor->nbytes());
    }
  }
  return bytes;
}

}  // namespace bench
