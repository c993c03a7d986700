#include "modules/batch_moments.h"

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>

namespace fsdp::modules {

int64_t values_per_channel(const at::Tensor& batch) {
  return batch.numel() == 0 ? 0 : batch.numel() / batch.size(1);
}

Moments moments_of(const at::Tensor& batch) {
  const auto count = values_per_channel(batch);
  const auto fp64 = batch.options().dtype(at::kDouble);
  const auto count_there = at::full({}, count, fp64);
  if (count == 0) return {at::zeros({batch.size(1)}, fp64), at::zeros({batch.size(1)}, fp64), count_there};
  const auto [mean, variance] =
      at::batch_norm_update_stats(batch.to(computed_in(batch.scalar_type())), {}, {}, /*momentum=*/0);
  return {mean.to(at::kDouble), variance.to(at::kDouble) * count, count_there};
}

at::Tensor packed(const Moments& moments) {
  return at::cat({moments.mean, moments.deviations, moments.count.reshape({1})});
}

Moments merged(const at::Tensor& of_ranks) {
  const auto channels = (of_ranks.size(1) - 1) / 2;
  const auto of_rank = [&](int64_t rank) {
    const auto row = of_ranks[rank];
    return Moments{row.narrow(0, 0, channels), row.narrow(0, channels, channels), row[2 * channels]};
  };
  Moments sum = of_rank(0);
  for (const auto rank : c10::irange(int64_t{1}, of_ranks.size(0))) {
    const Moments next = of_rank(rank);
    const auto count = sum.count + next.count;
    const auto divisor = count.clamp_min(1);  // if both batches are empty, all moments stay zero
    const auto distance = next.mean - sum.mean;
    sum.deviations = sum.deviations + next.deviations + distance.square() * (sum.count * next.count / divisor);
    sum.mean = sum.mean + distance * (next.count / divisor);
    sum.count = count;
  }
  return sum;
}

}  // namespace fsdp::modules
