#include <fsdp/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "optim/global_sums.h"
#include "optim/gradient_layout.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

struct RowGradient {
  const runtime::ParamSlot* slot;
  at::Tensor gradient;
};

// Those of the groups whose rows lie on the ranks of one axis.
struct OnAxis {
  const runtime::ParamGroup* group;
  std::vector<RowGradient> gradients = {};
};

// The gradients of this rank's rows of the model's parameters. A tied parameter's group may lie in another model, whose
// other parameters are not this one's.
std::vector<OnAxis> row_gradients(const Group& model, const char* operation) {
  std::unordered_set<const at::TensorImpl*> own;
  for (const auto& parameter : model.parameters()) own.insert(parameter.unsafeGetTensorImpl());
  std::vector<OnAxis> axes;
  const auto ranks_of = [](const OnAxis& axis) { return &axis.group->placement().shard(); };
  for (const auto& group : param_groups(model)) {
    auto axis = std::ranges::find(axes, &group->placement().shard(), ranks_of);
    if (axis == axes.end()) axis = axes.insert(axis, {group.get()});
    group->require_at_rest(operation);
    group->require_no_waiting_gradients(operation);
    for (const auto& slot : group->slots()) {
      const auto parameter = slot.tensor();
      if (!parameter.defined() || !own.contains(parameter.unsafeGetTensorImpl())) continue;
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      optim::require_sizes_of(slot.rows_tensor, gradient,
                              [&] { return group->where(operation) + "parameter '" + slot.name() + "'"; });
      axis->gradients.push_back({&slot, gradient});
    }
  }
  return axes;
}

// `subject`: the operation with the arguments in which ranks could differ unseen.
double norm_of(const Group& model, const std::vector<OnAxis>& axes, double norm_type, bool error_if_nonfinite,
               const std::string& subject, const std::string& where) {
  const auto* tensor_axis = param_groups(model).front()->placement().tensor_axis.get();
  std::vector<optim::RowsOnAxis> values;
  for (const auto& [group, gradients] : axes) {
    auto& on_axis = values.emplace_back(optim::RowsOnAxis{{group, tensor_axis}});
    for (const auto& [slot, gradient] : gradients)
      if (slot->cut() || on_axis.ranks.counts_uncut())
        on_axis.rows.push_back({optim::laid_out_as(slot->rows_tensor, gradient), slot->row_numel()});
  }
  const double norm = optim::norm_over_ranks(values, norm_type, subject);
  if (error_if_nonfinite && !std::isfinite(norm))
    throw Error(where + "the gradients' norm is not finite (" + str_cat(norm) +
                "). Look for an overflow in the loss, or pass error_if_nonfinite = false");
  return norm;
}

void require_norm_type(double norm_type, const std::string& where) {
  require(norm_type > 0, where, "expected norm_type > 0 or infinity, found ", norm_type);
}

}  // namespace

double clip_coefficient(double total_norm, double max_norm) {
  // A norm that is not a number makes every gradient so.
  const double ratio = max_norm / (total_norm + 1e-6);
  return ratio > 1.0 ? 1.0 : ratio;
}

double get_total_norm(const Group& model, double norm_type, bool error_if_nonfinite) {
  auto& first = *param_groups(model).front();
  const MutexLock lock(first.rank_state().mutex);
  const auto where = first.where("get_total_norm");
  require_norm_type(norm_type, where);
  const runtime::OwnOperators own_operators;
  return norm_of(model, row_gradients(model, "get_total_norm"), norm_type, error_if_nonfinite,
                 str_cat("get_total_norm of ", model.name(), ", norm ", norm_type), where);
}

double clip_grad_norm_(const Group& model, double max_norm, double norm_type, bool error_if_nonfinite) {
  auto& first = *param_groups(model).front();
  const MutexLock lock(first.rank_state().mutex);
  const auto where = first.where("clip_grad_norm_");
  require(max_norm >= 0, where, "expected max_norm >= 0, found ", max_norm);
  require_norm_type(norm_type, where);
  const runtime::OwnOperators own_operators;
  const auto axes = row_gradients(model, "clip_grad_norm_");
  // With the bounds, in which ranks could differ unseen.
  const auto subject = str_cat("clip_grad_norm_ of ", model.name(), " to ", max_norm, ", norm ", norm_type);
  const double norm = norm_of(model, axes, norm_type, error_if_nonfinite, subject, where);
  const double coefficient = clip_coefficient(norm, max_norm);
  for (const auto& axis : axes)
    for (const auto& row : axis.gradients) row.gradient.mul_(coefficient);
  return norm;
}

}  // namespace fsdp
