#include <fsdp/norms.h>

#include <memory>
#include <mutex>
#include <string>

#include "comm/core/check.h"
#include "optim/global_sums.h"
#include "optim/gradient_layout.h"
#include "optim/row_sums.h"
#include "runtime/compat.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

struct RowsOfGroup {
  std::shared_ptr<runtime::ParamGroup> group;  // of the first; null if there is none
  std::vector<optim::RowValues> rows;
};

// This rank's rows of parameters and of gradients that backward left.
RowsOfGroup rows_of(const std::vector<at::Tensor>& tensors, const std::string& operation) {
  RowsOfGroup found;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    const auto part = runtime::registry().find(tensor);
    require(
        part.has_value(), "fsdp::", operation,
        ": expected parameters of sharded models and gradients that backward left in .grad, found another tensor of "
        "sizes ",
        tensor.sizes(), ". What every rank has whole it can sum by itself");
    const auto where = [&] { return part->group->where(operation); };
    const auto& slot = part->group->slots()[part->slot];
    const bool is_parameter = part->kind != runtime::PartKind::kGradient;
    const auto& all = part->kind == runtime::PartKind::kWhole ? slot.whole_tensor : slot.rows_tensor;
    require(tensor.sizes() == all.sizes() && (!is_parameter || tensor.strides() == all.strides()), where(),
            "expected parameter '", slot.name(), "' or its gradient as it is, of sizes ", all.sizes(),
            ", found a view of sizes ", tensor.sizes());
    if (!found.group) found.group = part->group;
    require(part->group->placement() == found.group->placement(), where(), "parameter '", slot.name(),
            "' lies on other ranks than the first one. Call it for the parameters of each process group");
    found.rows.push_back(
        {is_parameter ? slot.rows_tensor : optim::laid_out_as(slot.rows_tensor, tensor), slot.row_numel()});
  }
  return found;
}

}  // namespace

double norm(const std::vector<at::Tensor>& tensors, double p) {
  require(p > 0, "fsdp::norm: expected p > 0 or infinity, found ", p);
  const runtime::OwnOperators own_operators;
  const auto [group, rows] = rows_of(tensors, "norm");
  if (!group) return 0;
  std::lock_guard lock(group->rank_state().mutex);
  const optim::RowsOnAxis axis{group.get(), rows};
  return optim::norm_over_ranks({&axis, 1}, p, str_cat("norm ", p, " of ", rows.size(), " tensors"));
}

double norm(const Group& model, double p) { return norm(model.parameters(), p); }

double sum(const std::vector<at::Tensor>& tensors) {
  const runtime::OwnOperators own_operators;
  const auto [group, rows] = rows_of(tensors, "sum");
  if (!group) return 0;
  std::lock_guard lock(group->rank_state().mutex);
  optim::SignedExactSum sum;
  for (const auto& [values, row_numel] : rows) sum.add(optim::sum_of_elements(values, row_numel));
  return optim::sum_over_ranks(*group, sum, str_cat("sum of ", rows.size(), " tensors"));
}

double sum(const Group& model) { return sum(model.parameters()); }

}  // namespace fsdp
