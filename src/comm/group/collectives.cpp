#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/irange.h>

#include <string>
#include <vector>

#include "comm/core/check.h"
#include "comm/group/named_collectives.h"

namespace fsdp {
namespace {

std::shared_ptr<ProcessGroup> or_default(const std::shared_ptr<ProcessGroup>& group) {
  return group ? group : default_process_group();
}

at::Tensor copy_of(const at::Tensor& tensor, const ProcessGroup& group, const std::string& operation) {
  require(tensor.defined(), group.where(operation), "expected a tensor, found an undefined one.");
  return tensor.clone(at::MemoryFormat::Contiguous);
}

// Of a call that is nothing but a collective. Sizes and dtype travel in the fingerprint.
Tag tag_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {c10::str(tensor.scalar_type(), " ", tensor.sizes()), {}};
}

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group,
                      const Tag& tag) {
  const at::NoGradGuard no_grad;
  const auto ranks = or_default(group);
  auto result = copy_of(tensor, *ranks, "all_reduce");
  ranks->communicator().all_reduce(result, op, tag)->wait();
  return result;
}

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group) {
  return all_reduce(tensor, op, group, tag_of(tensor));
}

double mean(double value, const std::shared_ptr<ProcessGroup>& group, const Tag& tag) {
  const auto sum = all_reduce(at::full({}, value, at::kDouble), ReduceOp::kSum, group, tag);
  return sum.item<double>() / or_default(group)->world_size();
}

double mean(double value, const std::shared_ptr<ProcessGroup>& group) { return mean(value, group, {"mean", {}}); }

at::Tensor broadcast(const at::Tensor& tensor, int root, const std::shared_ptr<ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  const auto ranks = or_default(group);
  auto result = copy_of(tensor, *ranks, "broadcast");
  ranks->communicator().broadcast(result, root, tag_of(result))->wait();
  return result;
}

at::Tensor all_gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  const auto ranks = or_default(group);
  const auto own = copy_of(tensor, *ranks, "all_gather");
  std::vector<int64_t> offsets, sizes{ranks->world_size()};
  for (const auto rank : c10::irange(ranks->world_size() + 1)) offsets.push_back(rank * own.numel());
  sizes.insert(sizes.end(), own.sizes().begin(), own.sizes().end());
  const auto result = at::empty(sizes, own.options());
  ranks->communicator().all_gather(result.view(-1), own.view(-1), offsets, tag_of(own))->wait();
  return result;
}

}  // namespace fsdp
