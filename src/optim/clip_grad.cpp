#include <fsdp/clip_grad.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <limits>

#include "comm/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

using runtime::ParamGroup;

// The gradients of this rank's rows in one order on every rank; undefined where there is none.
std::vector<at::Tensor> row_gradients(const std::vector<std::shared_ptr<ParamGroup>>& groups) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups) {
    require(!group->is_inside(), group->where("clip_grad_norm_"), "a forward scope or a backward is open on '",
            group->name(), "'. Clip after it; after an exception in backward call reset_iter_state() first");
    require(!group->reducer().has_gradients(), group->where("clip_grad_norm_"), "gradients of '", group->name(),
            "' of a backward without synchronisation wait for their reduction and would be left out. Run the last "
            "backward of the iteration outside of no_sync(), with set_requires_gradient_sync(true)");
    for (auto& slot : group->slots()) {
      auto parameter = slot.tensor();
      gradients.push_back(parameter.defined() ? parameter.grad() : at::Tensor());
    }
  }
  return gradients;
}

// Per parameter: the sum of |g|^p (or the maximum) over this rank's rows, in fp64.
at::Tensor partial_norms(const std::vector<at::Tensor>& gradients, double norm_type, bool is_max) {
  auto partial = at::zeros({static_cast<int64_t>(gradients.size())}, at::kDouble);
  auto* values = partial.mutable_data_ptr<double>();
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined() || gradients[i].numel() == 0) continue;
    auto magnitude = gradients[i].detach().to(at::kDouble).abs();
    values[i] = (is_max ? magnitude.max() : magnitude.pow(norm_type).sum()).item<double>();
  }
  return partial;
}

double total_norm(const at::Tensor& norms, double norm_type, bool is_max) {
  if (norms.numel() == 0) return 0.0;
  return is_max ? norms.max().item<double>() : std::pow(norms.sum().item<double>(), 1.0 / norm_type);
}

}  // namespace

double clip_grad_norm_(const Group& model, double max_norm, double norm_type, bool error_if_nonfinite) {
  const auto& groups = model.param_groups();
  auto& first = *groups.front();
  std::lock_guard lock(first.rank_state().mutex);
  auto where = first.where("clip_grad_norm_");
  require(max_norm >= 0, where, "expected max_norm >= 0, found ", max_norm);
  require(norm_type > 0, where, "expected norm_type > 0 or infinity, found ", norm_type);
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(runtime::kShardedKey);
  bool is_max = norm_type == std::numeric_limits<double>::infinity();
  auto gradients = row_gradients(groups);
  auto norms = partial_norms(gradients, norm_type, is_max);
  // With the bounds, in which ranks could differ unseen.
  Tag tag{c10::str("clip_grad_norm_ of ", model.name(), " to ", max_norm, ", norm ", norm_type), {}};
  first.process_group()
      .communicator()
      .all_reduce(norms, is_max ? ReduceOp::kMax : ReduceOp::kSum, std::move(tag))
      ->wait();
  double norm = total_norm(norms, norm_type, is_max);
  if (error_if_nonfinite && !std::isfinite(norm))
    throw Error(where + "the gradients' norm is not finite (" + std::to_string(norm) +
                "). Look for an overflow in the loss, or pass error_if_nonfinite = false");
  double scale = std::min(1.0, max_norm / (norm + 1e-6));  // as torch.nn.utils.clip_grad_norm_
  for (auto& gradient : gradients)
    if (gradient.defined()) gradient.mul_(scale);
  return norm;
}

}  // namespace fsdp
