#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fsdp/metrics.h>

#include "api/rows.h"
#include "comm/core/check.h"

namespace fsdp {

RunningSums::RunningSums(int64_t count, c10::Device device)
    : sums_(at::zeros({count}, at::TensorOptions(at::kDouble).device(device))) {}

void RunningSums::add(const std::vector<at::Tensor>& values) {
  require(static_cast<int64_t>(values.size()) == sums_.numel(), "[fsdp] RunningSums::add: expected ", sums_.numel(),
          " scalars, found ", values.size(), ".");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> terms;
  for (const auto& value : values) terms.push_back(value.detach().to(sums_.options(), /*non_blocking=*/true));
  sums_.add_(at::stack(terms));
}

std::vector<double> RunningSums::over_ranks(const std::shared_ptr<ProcessGroup>& group) const {
  const auto total = all_reduce(sums_, ReduceOp::kSum, group, {"RunningSums::over_ranks", {}}).cpu();
  const auto* first = total.const_data_ptr<double>();
  return {first, first + total.numel()};
}

}  // namespace fsdp
