#include "optim/global_sums.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "optim/row_sums.h"

namespace fsdp::optim {
namespace {

void reduce(const SummedRanks& ranks, const at::Tensor& values, ReduceOp op, const std::string& subject) {
  const auto* group = ranks.group;
  const auto over = [&](const ProcessGroup* axis, Tag tag) {
    if (axis == nullptr) return;
    const auto work = axis->communicator().all_reduce(values, op, std::move(tag));
    group ? group->rank_state().wait(*work) : work->wait();
  };
  const auto over_axes = [&] {
    if (ranks.pipe_axis) return over(ranks.pipe_axis, {subject});
    if (group) over(&group->placement().shard(), group->tag(subject));
    over(ranks.tensor_axis, group ? group->tag(subject) : Tag{subject});
  };
  group ? group->placement().pass_on_failure_of(subject, over_axes) : over_axes();
}

// Returns the totals of the ranks' sums. The all-reduce is exact in any order, because the words are integers.
template <class Sum>
std::vector<Sum> add_sums(const SummedRanks& ranks, std::span<const Sum> sums, const std::string& subject) {
  constexpr auto kWords = static_cast<int64_t>(Sum::kWords);
  auto words = at::zeros({static_cast<int64_t>(sums.size()), kWords}, at::kDouble);
  auto* data = words.mutable_data_ptr<double>();
  for (const auto& sum : sums) data = std::ranges::copy(sum.words(), data).out;
  reduce(ranks, words, ReduceOp::kSum, subject);
  std::vector<Sum> all;
  for (int64_t i = 0; i < words.size(0); ++i)
    all.push_back(
        Sum::from_words(std::span<const double, Sum::kWords>(words.const_data_ptr<double>() + i * kWords, kWords)));
  return all;
}

double root(const ExactSum& sum, double p) { return p == 2 ? std::sqrt(sum.value()) : std::pow(sum.value(), 1.0 / p); }

double larger(double one, double other) { return other > one || std::isnan(other) ? other : one; }

bool is_max(double p) { return p == std::numeric_limits<double>::infinity(); }

}  // namespace

double sum_over_ranks(const SummedRanks& ranks, const SignedExactSum& sum, const std::string& subject) {
  return add_sums<SignedExactSum>(ranks, {&sum, 1}, subject)[0].value();
}

bool any_over_ranks(const SummedRanks& ranks, bool holds, const std::string& subject) {
  const auto any = at::scalar_tensor(holds ? 1.0 : 0.0, at::kDouble);
  reduce(ranks, any, ReduceOp::kMax, subject);
  return any.item<double>() != 0;
}

void add_over_ranks(const SummedRanks& ranks, const at::Tensor& values, const std::string& subject) {
  reduce(ranks, values, ReduceOp::kSum, subject);
}

std::vector<double> norms_over_ranks(const RowsOnAxis& tensors, double p, const std::string& subject) {
  const auto& [ranks, rows] = tensors;
  std::vector<double> norms;
  if (is_max(p)) {
    for (const auto& [values, row_numel] : rows) norms.push_back(max_magnitude(values));
    const auto largest = at::from_blob(norms.data(), {static_cast<int64_t>(norms.size())}, at::kDouble);
    reduce(ranks, largest, ReduceOp::kMax, subject);
    return norms;
  }
  std::vector<ExactSum> sums;
  for (const auto& [values, row_numel] : rows) sums.push_back(sum_of_powers(values, row_numel, p));
  for (const auto& sum : add_sums<ExactSum>(ranks, sums, subject)) norms.push_back(root(sum, p));
  return norms;
}

double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject,
                       const SummedRanks& stages) {
  auto largest = at::zeros({}, at::kDouble);
  ExactSum sum;
  for (const auto& [ranks, rows] : axes) {
    if (is_max(p)) {
      double on_rank = 0;
      for (const auto& [values, row_numel] : rows) on_rank = larger(on_rank, max_magnitude(values));
      const auto on_axis = at::scalar_tensor(on_rank, at::kDouble);
      reduce(ranks, on_axis, ReduceOp::kMax, subject);
      largest = at::maximum(largest, on_axis);
      continue;
    }
    ExactSum on_rank;
    for (const auto& [values, row_numel] : rows) on_rank.add(sum_of_powers(values, row_numel, p));
    sum.add(add_sums<ExactSum>(ranks, {&on_rank, 1}, subject)[0]);
  }
  if (!is_max(p)) return root(add_sums<ExactSum>(stages, {&sum, 1}, subject)[0], p);
  reduce(stages, largest, ReduceOp::kMax, subject);
  return largest.item<double>();
}

}  // namespace fsdp::optim
