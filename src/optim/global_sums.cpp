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
  group.rank_state().wait(*group.placement().shard().communicator().all_reduce(values, op, group.tag(subject)));
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

double norm_over_ranks(const ParamGroup& group, std::span<const RowValues> rows, double p, const std::string& subject) {
  if (p == std::numeric_limits<double>::infinity()) {
    double largest = 0;
    for (const auto& [values, row_numel] : rows)
      if (const double found = max_magnitude(values); found > largest || std::isnan(found)) largest = found;
    return max_over_ranks(group, largest, subject);
  }
  ExactSum sum;
  for (const auto& [values, row_numel] : rows) sum.add(sum_of_powers(values, row_numel, p));
  const double total = add_over_ranks(group, sum, subject).value();
  return p == 2 ? std::sqrt(total) : std::pow(total, 1.0 / p);
}

}  // namespace fsdp::optim
