#include <fsdp/norms.h>

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "comm/core/check.h"
#include "layout/planes.h"
#include "optim/global_sums.h"
#include "optim/gradient_layout.h"
#include "optim/row_sums.h"
#include "runtime/compat.h"
#include "runtime/row_operands.h"

namespace fsdp {
namespace {

void require_real(const at::Tensor& tensor, const std::string& operation) {
  require(!tensor.is_complex(), "fsdp::", operation, ": expected real numbers, found ", tensor.scalar_type(),
          " of sizes ", tensor.sizes(), ". Pass torch::view_as_real(tensor) instead");
}

// Returns this rank's rows of a sharded tensor, with the memory layout of the parameter's rows.
at::Tensor rows_of(const runtime::Part& part, const at::Tensor& tensor, const std::string& operation) {
  using runtime::PartKind;
  const auto& slot = part.group->slots()[part.slot];
  const bool is_parameter = part.kind == PartKind::kRows || part.kind == PartKind::kWhole;
  const auto& all = part.kind == PartKind::kWhole ? slot.whole_tensor : slot.rows_tensor;
  const bool lies_alike = is_parameter ? tensor.strides() == all.strides() : runtime::has_rows_first(tensor, slot);
  require(tensor.sizes() == all.sizes() && lies_alike, part.group->where(operation), "expected parameter '",
          slot.name(), "', its gradient or the result of element-wise operators on them, of sizes ", all.sizes(),
          ", found a view of sizes ", tensor.sizes());
  if (is_parameter) return slot.rows_tensor;
  const bool is_result = part.kind == PartKind::kResult;
  return optim::laid_out_as(slot.rows_tensor, tensor, (is_result ? tensor : slot.rows_tensor).scalar_type());
}

// Returns the values of a tensor that every rank has whole. They are empty if `counts` is false, because only one rank
// must count them.
optim::RowValues values_of_whole(const at::Tensor& tensor, bool counts) {
  const auto values = tensor.contiguous();
  const int64_t rows = values.dim() == 0 ? 1 : values.size(0);
  return {counts ? values : values.new_empty({0}), rows == 0 ? 1 : std::max<int64_t>(1, values.numel() / rows)};
}

struct Tensors {
  std::shared_ptr<runtime::ParamGroup> group;  // group of the first sharded tensor; null if there is none
  const ProcessGroup* tensor_axis = nullptr;
  std::vector<optim::RowValues> rows = {};

  optim::SummedRanks ranks() const { return {group.get(), tensor_axis}; }
  optim::RowsOnAxis on_axis() const { return {ranks(), rows}; }
  std::unique_lock<RankLock> lock() const {
    return group ? std::unique_lock(group->rank_state().mutex) : std::unique_lock<RankLock>();
  }
};

Tensors take(const std::vector<at::Tensor>& tensors, const std::string& operation) {
  std::vector<std::optional<runtime::Part>> parts;
  Tensors found;
  for (const auto& tensor : tensors) {
    if (tensor.defined()) require_real(tensor, operation);
    const auto& part = parts.emplace_back(tensor.defined() ? runtime::part_of(tensor) : std::nullopt);
    if (!part) continue;
    if (!found.group) found.group = part->group;
    if (part->group->slots()[part->slot].cut()) found.tensor_axis = part->group->placement().tensor_axis.get();
    require(part->group->placement() == found.group->placement(), part->group->where(operation), "parameter '",
            part->group->slots()[part->slot].name(),
            "' is sharded over different ranks than the first parameter. Call this function separately for the "
            "parameters of each process group");
  }
  const bool counts_uncut = found.ranks().counts_uncut();
  const bool is_first = counts_uncut && (!found.group || found.group->placement().shard().rank() == 0);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (parts[i]) {
      const auto& slot = parts[i]->group->slots()[parts[i]->slot];
      const auto rows = rows_of(*parts[i], tensors[i], operation);
      found.rows.push_back({slot.cut() || counts_uncut ? rows : rows.new_empty({0}), slot.row_numel()});
    } else {
      found.rows.push_back(tensors[i].defined() ? values_of_whole(tensors[i], is_first)
                                                : optim::RowValues{at::empty({0})});
    }
  }
  return found;
}

// Returns true if a sum along `dims` of a tensor with `of_dims` dims includes `dim`. Empty `dims` mean all dims.
bool is_summed(at::IntArrayRef dims, int64_t dim, int64_t of_dims) {
  const auto is_this = [&](int64_t each) { return at::maybe_wrap_dim(each, of_dims) == dim; };
  return dims.empty() || std::ranges::any_of(dims, is_this);
}

// Returns this rank's contribution to the sums along `dims`. Its sizes are those of the whole parameter, but 1 in the
// dims that are summed.
at::Tensor sums_of_boxes(const at::Tensor& rows, const runtime::ParamSlot& slot, at::IntArrayRef dims) {
  auto sizes = slot.sizes().vec();
  const auto of_dims = static_cast<int64_t>(sizes.size());
  for (const auto dim : c10::irange(of_dims))
    if (is_summed(dims, dim, of_dims)) sizes[static_cast<size_t>(dim)] = 1;
  const auto sums = at::zeros(sizes, rows.options().dtype(at::kDouble));
  for (const auto& box : layout::boxes_of(slot.sizes(), slot.joined_dims(), slot.rows())) {
    auto target = sums;
    for (const auto dim : c10::irange(of_dims))
      if (const auto d = static_cast<size_t>(dim); sizes[d] != 1)
        target = target.narrow(dim, box.offsets[d], box.sizes[d]);
    const auto values = rows.narrow(0, box.first_row - slot.rows().first, box.rows).reshape(box.sizes).to(at::kDouble);
    target.add_(values.sum(dims, /*keepdim=*/true));
  }
  return sums;
}

at::Tensor squeezed(const at::Tensor& sums, at::IntArrayRef dims) {
  std::vector<int64_t> sizes;
  for (const auto dim : c10::irange(sums.dim()))
    if (!is_summed(dims, dim, sums.dim())) sizes.push_back(sums.size(dim));
  return sums.reshape(sizes);
}

template <class Holds>
bool any_where(const std::vector<at::Tensor>& tensors, const std::string& operation, const Holds& holds) {
  const runtime::OwnOperators own_operators;
  const auto found = take(tensors, operation);
  const auto lock = found.lock();
  const bool here = std::ranges::any_of(found.rows, [&](const auto& row) { return holds(row.values); });
  return optim::any_over_ranks(found.ranks(), here, str_cat(operation, " of ", tensors.size(), " tensors"));
}

}  // namespace

double norm(const std::vector<at::Tensor>& tensors, double p) {
  require(p > 0, "fsdp::norm: expected p > 0 or infinity, found ", p);
  const runtime::OwnOperators own_operators;
  const auto found = take(tensors, "norm");
  const auto lock = found.lock();
  const auto axis = found.on_axis();
  return optim::norm_over_ranks({&axis, 1}, p, str_cat("norm ", p, " of ", tensors.size(), " tensors"));
}

double norm(const Group& model, double p) { return norm(model.parameters(), p); }

std::vector<double> norms(const std::vector<at::Tensor>& tensors, double p) {
  require(p > 0, "fsdp::norms: expected p > 0 or infinity, found ", p);
  const runtime::OwnOperators own_operators;
  const auto found = take(tensors, "norms");
  const auto lock = found.lock();
  return optim::norms_over_ranks(found.on_axis(), p, str_cat("norms ", p, " of ", tensors.size(), " tensors"));
}

double sum(const std::vector<at::Tensor>& tensors) {
  const runtime::OwnOperators own_operators;
  const auto found = take(tensors, "sum");
  const auto lock = found.lock();
  optim::SignedExactSum sum;
  for (const auto& [values, row_numel] : found.rows) sum.add(optim::sum_of_elements(values, row_numel));
  return optim::sum_over_ranks(found.ranks(), sum, str_cat("sum of ", tensors.size(), " tensors"));
}

double sum(const Group& model) { return sum(model.parameters()); }

at::Tensor sum(const at::Tensor& tensor, at::IntArrayRef dims, bool keepdim) {
  require(tensor.defined(), "fsdp::sum: expected a tensor, found an undefined one");
  const runtime::OwnOperators own_operators;
  const auto part = runtime::part_of(tensor);
  if (!part) return tensor.sum(dims, keepdim);
  require_real(tensor, "sum");
  const auto& slot = part->group->slots()[part->slot];
  require(!slot.cut(), part->group->where("sum"),
          "sums along dims do not support parameters that are split over a tensor axis, such as '", slot.name(),
          "'. Sum all elements of the parameter, or its rows under LocalRows");
  const auto rows = rows_of(*part, tensor, "sum");
  auto sums = sums_of_boxes(rows, slot, dims);
  const MutexLock lock(part->group->rank_state().mutex);
  optim::add_over_ranks({part->group.get()}, sums, str_cat("sum over dims ", dims, " of ", slot.name()));
  const bool counts = at::isIntegralType(rows.scalar_type(), /*includeBool=*/true);
  if (!keepdim) sums = squeezed(sums, dims);
  return sums.to(counts ? at::kLong : rows.scalar_type());
}

bool any(const std::vector<at::Tensor>& tensors) {
  return any_where(tensors, "any", [](const at::Tensor& values) { return values.any().item<bool>(); });
}

bool all(const std::vector<at::Tensor>& tensors) {
  return !any_where(tensors, "all", [](const at::Tensor& values) { return !values.all().item<bool>(); });
}

}  // namespace fsdp
