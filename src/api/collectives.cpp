#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/interceptor.h"
#include "runtime/param_group.h"
#include "runtime/row_operands.h"

namespace fsdp {
namespace {

std::shared_ptr<ProcessGroup> or_default(const std::shared_ptr<ProcessGroup>& group) {
  return group ? group : default_process_group();
}

// Throws UsageError for rows, which differ between the ranks: a collective would combine elements of different rows.
void require_no_rows(const at::Tensor& tensor, const ProcessGroup& ranks, const std::string& operation) {
  const auto part = runtime::part_of(tensor);
  const auto is_axis = [&](const auto& axis) { return axis.get() == &ranks; };
  if (!part || std::ranges::any_of(part->group->placement().replicate(), is_axis)) return;
  const std::string instead = part->kind == runtime::PartKind::kGradient
                                  ? "Backward has already averaged the gradient over the ranks: leave out this call, "
                                    "and take the whole gradient from fsdp::full_grad(p)"
                                  : "Leave out this call, and take the whole tensor from fsdp::full_tensor";
  runtime::require_no_rows(*part, tensor, ranks.where(operation),
                           instead + ". For numbers over all rows, use fsdp::norm, fsdp::sum, fsdp::any or fsdp::all");
}

at::Tensor copy_of(const at::Tensor& tensor, const ProcessGroup& group, const std::string& operation) {
  require(tensor.defined(), group.where(operation), "expected a tensor, found an undefined one.");
  const auto part = runtime::part_of(tensor);
  std::optional<runtime::OwnOperators> unmarked;  // the communicator must get a tensor that is not intercepted
  if (part && part->kind != runtime::PartKind::kWhole) unmarked.emplace();
  return tensor.clone(at::MemoryFormat::Contiguous);
}

// Returns the tag of a collective that the user called directly. It contains sizes and dtype, which the ranks compare.
Tag tag_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {str_cat(tensor.scalar_type(), " ", tensor.sizes()), {}};
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group,
                      const Tag& tag) {
  const at::NoGradGuard no_grad;
  const auto ranks = or_default(group);
  require_no_rows(tensor, *ranks, "all_reduce");
  auto result = copy_of(tensor, *ranks, "all_reduce");
  ranks->communicator().all_reduce(result, op, tag)->wait();
  return result;
}

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group) {
  return all_reduce(tensor, op, group, tag_of(tensor));
}

void all_reduce_(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  tensor.copy_(all_reduce(tensor, op, group));
}

double mean(double value, const std::shared_ptr<ProcessGroup>& group, const Tag& tag) {
  const auto sum = all_reduce(at::full({}, value, at::kDouble), ReduceOp::kSum, group, tag);
  return sum.item<double>() / or_default(group)->world_size();
}

double mean(double value, const std::shared_ptr<ProcessGroup>& group) { return mean(value, group, {"mean", {}}); }

at::Tensor broadcast(const at::Tensor& tensor, int root, const std::shared_ptr<ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  const auto ranks = or_default(group);
  require_no_rows(tensor, *ranks, "broadcast");
  auto result = copy_of(tensor, *ranks, "broadcast");
  ranks->communicator().broadcast(result, root, tag_of(result))->wait();
  return result;
}

void broadcast_(const at::Tensor& tensor, int root, const std::shared_ptr<ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  tensor.copy_(broadcast(tensor, root, group));
}

at::Tensor all_gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  const auto ranks = or_default(group);
  const auto own = copy_of(tensor, *ranks, "all_gather");
  std::vector<int64_t> sizes{ranks->world_size()};
  sizes.insert(sizes.end(), own.sizes().begin(), own.sizes().end());
  const auto result = at::empty(sizes, own.options());
  ranks->communicator().all_gather(result.view(-1), own.view(-1), tag_of(own))->wait();
  return result;
}

}  // namespace fsdp
