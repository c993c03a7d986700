#include "optim/global_sums.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/row_sums.h"

namespace fsdp::optim {
namespace {

using runtime::ParamGroup;

void reduce(const ParamGroup& group, const at::Tensor& values, ReduceOp op, const std::string& subject) {
  group.placement().pass_on_failure_of(subject, [&] {
    group.rank_state().wait(*group.placement().shard().communicator().all_reduce(values, op, group.tag(subject)));
  });
}

// Whole numbers, so that adding them is exact in any order.
template <class Sum>
Sum add_over_ranks(const ParamGroup& group, const Sum& sum, const std::string& subject) {
  auto words = at::zeros({static_cast<int64_t>(Sum::kWords)}, at::kDouble);
  std::ranges::copy(sum.words(), words.mutable_data_ptr<double>());
  reduce(group, words, ReduceOp::kSum, subject);
  return Sum::from_words(std::span<const double, Sum::kWords>(words.const_data_ptr<double>(), Sum::kWords));
}

}  // namespace

double sum_over_ranks(const ParamGroup& group, const SignedExactSum& sum, const std::string& subject) {
  return add_over_ranks(group, sum, subject).value();
}

double max_over_ranks(const ParamGroup& group, double value, const std::string& subject) {
  const auto largest = at::scalar_tensor(value, at::kDouble);
  reduce(group, largest, ReduceOp::kMax, subject);
  return largest.item<double>();
}

double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject) {
  double largest = 0;
  ExactSum sum;
  const bool is_max = p == std::numeric_limits<double>::infinity();
  const auto take = [&](double found) {
    if (found > largest || std::isnan(found)) largest = found;
  };
  for (const auto& [group, rows] : axes) {
    if (is_max) {
      double on_rank = 0;
      for (const auto& [values, row_numel] : rows)
        if (const double found = max_magnitude(values); found > on_rank || std::isnan(found)) on_rank = found;
      take(max_over_ranks(*group, on_rank, subject));
      continue;
    }
    ExactSum on_rank;
    for (const auto& [values, row_numel] : rows) on_rank.add(sum_of_powers(values, row_numel, p));
    sum.add(add_over_ranks(*group, on_rank, subject));
  }
  if (is_max) return largest;
  return p == 2 ? std::sqrt(sum.value()) : std::pow(sum.value(), 1.0 / p);
}

}  // namespace fsdp::optim
