#include "optim/clip_grad.h"

#include <fsdp/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "optim/global_sums.h"
#include "optim/gradient_layout.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace optim {
namespace {

using runtime::ParamGroup;

std::vector<ParamGroup*> groups_of(const MeasuredModel& model) {
  std::vector<ParamGroup*> groups;
  for (const auto& parameter : model.parameters) {
    const auto part = runtime::registry().find(parameter.tensor);
    if (!part || (!groups.empty() && groups.back() == part->group.get())) continue;
    if (std::ranges::find(groups, part->group.get()) == groups.end()) groups.push_back(part->group.get());
  }
  return groups;
}

// The tensors that a norm includes.
struct Measured {
  std::vector<at::Tensor> tensors = {};
  std::vector<RowsOnAxis> axes = {};  // this rank's rows of the tensors, one entry per set of ranks to sum over
};

RowsOnAxis& axis_of(const SummedRanks& ranks, std::vector<RowsOnAxis>& axes) {
  const auto key_of = [](const SummedRanks& of) {
    return std::pair(of.group ? &of.group->placement().shard() : nullptr, of.tensor_axis);
  };
  const auto found = std::ranges::find_if(axes, [&](const auto& axis) { return key_of(axis.ranks) == key_of(ranks); });
  return found != axes.end() ? *found : axes.emplace_back(RowsOnAxis{ranks});
}

// `select(parameter, rows)` returns the tensor that the norm includes for the parameter. The norm leaves the parameter
// out if that tensor is undefined.
template <class Select>
Measured measure(const MeasuredModel& model, const char* operation, const Select& select) {
  Measured all;
  for (const auto& [parameter, tensor_axis, is_cut] : model.parameters) {
    const auto part = runtime::registry().find(parameter);
    const auto* slot = part ? &part->group->slots()[part->slot] : nullptr;
    auto& axis = axis_of(part ? SummedRanks{part->group.get(), part->group->placement().tensor_axis.get()}
                              : SummedRanks{nullptr, tensor_axis},
                         all.axes);
    const auto rows = slot ? slot->rows_tensor : parameter.detach().contiguous();
    const at::Tensor tensor = select(parameter, rows);
    if (!tensor.defined()) continue;
    require_sizes_of(rows, tensor, [&] {
      return str_cat(model.ranks.where(operation), slot ? str_cat("parameter '", slot->name(), "'") : "a parameter");
    });
    all.tensors.push_back(tensor);
    const int64_t row_numel = slot              ? slot->row_numel()
                              : rows.dim() == 0 ? 1
                                                : c10::multiply_integers(rows.sizes().slice(1));
    if ((slot ? slot->cut().has_value() : is_cut) || axis.ranks.counts_uncut())
      axis.rows.push_back({laid_out_as(rows, tensor), std::max<int64_t>(row_numel, 1)});
  }
  return all;
}

Measured gradients_of(const MeasuredModel& model, const char* operation) {
  for (const auto* group : groups_of(model)) {
    group->require_at_rest(operation);
    group->require_no_waiting_gradients(operation);
  }
  return measure(model, operation, [](const at::Tensor& parameter, const at::Tensor&) { return parameter.grad(); });
}

// Collective. The ranks compare `arguments`; if these differ, every rank throws Mismatch.
double norm_of(const MeasuredModel& model, const Measured& measured, double norm_type, const char* operation,
               const std::string& arguments) {
  SummedRanks stages;
  if (model.pipe_axis) {
    const auto groups = groups_of(model);
    stages = {groups.empty() ? nullptr : groups.front(), nullptr, model.pipe_axis};
  }
  return norm_over_ranks(measured.axes, norm_type,
                         str_cat(operation, " of ", model.name, arguments, ", norm ", norm_type), stages);
}

void require_norm_type(double norm_type, const std::string& where) {
  require(norm_type > 0, where, "expected norm_type > 0 or infinity, found ", norm_type);
}

void require_finite(double norm, bool error_if_nonfinite, const std::string& where) {
  if (error_if_nonfinite && !std::isfinite(norm))
    throw Error(where + "the gradients' norm is not finite (" + str_cat(norm) +
                "). Look for an overflow in the loss, or pass error_if_nonfinite = false");
}

}  // namespace

double norm(const MeasuredModel& model, double p) {
  constexpr auto kOperation = "norm";
  require(p > 0, "fsdp::norm: expected p > 0 or infinity, found ", p);
  const auto locks = runtime::lock_ranks(groups_of(model));
  const runtime::OwnOperators own_operators;
  const auto values = measure(model, kOperation, [](const at::Tensor&, const at::Tensor& rows) { return rows; });
  return norm_of(model, values, p, kOperation, "");
}

double get_total_norm(const MeasuredModel& model, double norm_type, bool error_if_nonfinite) {
  constexpr auto kOperation = "get_total_norm";
  const auto where = model.ranks.where(kOperation);
  require_norm_type(norm_type, where);
  const auto locks = runtime::lock_ranks(groups_of(model));
  const runtime::OwnOperators own_operators;
  const double norm = norm_of(model, gradients_of(model, kOperation), norm_type, kOperation, "");
  require_finite(norm, error_if_nonfinite, where);
  return norm;
}

double clip_grad_norm_(const MeasuredModel& model, double max_norm, double norm_type, bool error_if_nonfinite) {
  constexpr auto kOperation = "clip_grad_norm_";
  const auto where = model.ranks.where(kOperation);
  require(max_norm >= 0, where, "expected max_norm >= 0, found ", max_norm);
  require_norm_type(norm_type, where);
  const auto locks = runtime::lock_ranks(groups_of(model));
  const runtime::OwnOperators own_operators;
  const auto gradients = gradients_of(model, kOperation);
  const double norm = norm_of(model, gradients, norm_type, kOperation, str_cat(" to ", max_norm));
  require_finite(norm, error_if_nonfinite, where);
  const double coefficient = clip_coefficient(norm, max_norm);
  for (const auto& gradient : gradients.tensors) gradient.mul_(coefficient);
  return norm;
}

}  // namespace optim

namespace {

// Returns the sharded parameters of `model`. Throws UsageError if the model is a stage of a pipeline, because the norm
// must include the parameters of all stages.
optim::MeasuredModel measured(const Group& model, const char* operation) {
  const auto& placement = param_groups(model).front()->placement();
  require(!placement.pipe_axis, placement.where(operation), "'", model.name(),
          "' is a stage of a pipeline, and the norm must cover all stages. Pass the fsdp::Pipeline");
  optim::MeasuredModel measured{model.name(), placement.process_group(), {}};
  for (auto& parameter : model.parameters())
    if (runtime::registry().find(parameter)) measured.parameters.push_back({std::move(parameter)});
  return measured;
}

}  // namespace

double clip_coefficient(double total_norm, double max_norm) {
  // If the norm is NaN, the comparison is false and the coefficient is NaN, which makes every gradient NaN.
  const double ratio = max_norm / (total_norm + 1e-6);
  return ratio > 1.0 ? 1.0 : ratio;
}

double get_total_norm(const Group& model, double norm_type, bool error_if_nonfinite) {
  return optim::get_total_norm(measured(model, "get_total_norm"), norm_type, error_if_nonfinite);
}

double clip_grad_norm_(const Group& model, double max_norm, double norm_type, bool error_if_nonfinite) {
  return optim::clip_grad_norm_(measured(model, "clip_grad_norm_"), max_norm, norm_type, error_if_nonfinite);
}

}  // namespace fsdp
