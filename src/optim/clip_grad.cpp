#include <fsdp/clip_grad.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "optim/gradient_layout.h"
#include "optim/row_norms.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using optim::ExactSum;
using runtime::ParamGroup;

struct RowGradient {
  runtime::ParamRows rows;
  at::Tensor gradient;
};

// The gradients of this rank's rows of the model's parameters. A tied parameter's group may lie in another model, whose
// other parameters are not this one's.
std::vector<RowGradient> row_gradients(const Group& model) {
  std::unordered_set<const at::TensorImpl*> own;
  for (const auto& parameter : model.parameters()) own.insert(parameter.unsafeGetTensorImpl());
  std::vector<RowGradient> gradients;
  for (const auto& group : param_groups(model)) {
    if (group->is_inside())
      require(false, group->where("clip_grad_norm_"), "a forward scope or a backward is open on '", group->name(),
              "'. Clip after it; after an exception in backward call reset_iter_state() first");
    group->require_no_waiting_gradients("clip_grad_norm_");
    for (const auto& rows : group->params().list_rows()) {
      if (!rows.parameter.defined() || !own.contains(rows.parameter.unsafeGetTensorImpl())) continue;
      const auto& gradient = rows.parameter.grad();
      if (!gradient.defined()) continue;
      optim::require_sizes_of(rows.values, gradient,
                              [&] { return group->where("clip_grad_norm_") + "parameter '" + rows.name + "'"; });
      gradients.push_back({rows, gradient});
    }
  }
  return gradients;
}

// Replicas have the same rows.
void reduce(const ParamGroup& group, const at::Tensor& values, ReduceOp op, const std::string& subject) {
  group.rank_state().wait(*group.placement().shard().communicator().all_reduce(values, op, group.tag(subject)));
}

double max_norm_of(const ParamGroup& group, const std::vector<RowGradient>& gradients, const std::string& subject) {
  auto largest = at::zeros({1}, at::kDouble);
  for (const auto& [rows, gradient] : gradients) {
    const double found = optim::max_magnitude(gradient);
    auto& value = *largest.mutable_data_ptr<double>();
    if (found > value || std::isnan(found)) value = found;
  }
  reduce(group, largest, ReduceOp::kMax, subject);
  return largest.item<double>();
}

double p_norm_of(const ParamGroup& group, const std::vector<RowGradient>& gradients, double p,
                 const std::string& subject) {
  ExactSum sum;
  for (const auto& [rows, gradient] : gradients)
    sum.add(optim::sum_of_powers(optim::laid_out_as(rows.values, gradient), rows.row_numel(), p));
  auto words = at::zeros({static_cast<int64_t>(ExactSum::kWords)}, at::kDouble);
  std::ranges::copy(sum.words(), words.mutable_data_ptr<double>());
  reduce(group, words, ReduceOp::kSum, subject);
  const auto total =
      ExactSum::from_words(std::span<const double, ExactSum::kWords>(words.const_data_ptr<double>(), ExactSum::kWords));
  return p == 2 ? std::sqrt(total.value()) : std::pow(total.value(), 1.0 / p);
}

}  // namespace

double clip_grad_norm_(const Group& model, double max_norm, double norm_type, bool error_if_nonfinite) {
  auto& first = *param_groups(model).front();
  std::lock_guard lock(first.rank_state().mutex);
  auto where = first.where("clip_grad_norm_");
  require(max_norm >= 0, where, "expected max_norm >= 0, found ", max_norm);
  require(norm_type > 0, where, "expected norm_type > 0 or infinity, found ", norm_type);
  const runtime::OwnOperators own_operators;
  auto gradients = row_gradients(model);
  // With the bounds, in which ranks could differ unseen.
  const auto subject = c10::str("clip_grad_norm_ of ", model.name(), " to ", max_norm, ", norm ", norm_type);
  const bool is_max = norm_type == std::numeric_limits<double>::infinity();
  const double norm = is_max ? max_norm_of(first, gradients, subject) : p_norm_of(first, gradients, norm_type, subject);
  if (error_if_nonfinite && !std::isfinite(norm))
    throw Error(where + "the gradients' norm is not finite (" + std::to_string(norm) +
                "). Look for an overflow in the loss, or pass error_if_nonfinite = false");
  // As torch.nn.utils.clip_grad_norm_: a norm that is not a number makes every gradient so.
  const double ratio = max_norm / (norm + 1e-6);
  const double scale = ratio > 1.0 ? 1.0 : ratio;
  for (auto& row : gradients) row.gradient.mul_(scale);
  return norm;
}

}  // namespace fsdp
