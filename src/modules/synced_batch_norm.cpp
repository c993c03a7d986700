#include "modules/synced_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/group/attachment.h"
#include "modules/batch_moments.h"
#include "runtime/rank_state.h"

namespace fsdp::modules {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Moments joined_moments(const at::Tensor& input, const SyncGroup& group) {
  const auto own = packed(moments_of(input));
  const auto world = group.communicator->world_size();
  const auto of_ranks = at::empty({world, own.numel()}, own.options());
  group.communicator->all_gather(of_ranks.view(-1), own, {"statistics of " + group.name, {}})->wait();
  return merged(of_ranks);
}

// Returns a view of per-channel values that broadcasts over a batch.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& batch) {
  std::vector<int64_t> sizes(static_cast<size_t>(batch.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

// Returns batch * factor + addend, computed in one pass.
at::Tensor scaled(const at::Tensor& batch, const at::Tensor& factor, const at::Tensor& addend) {
  return at::addcmul(addend, batch, along_channels(factor, batch));
}

void move_on(const NormOperands& operands, const Moments& moments) {
  const auto move = [&](at::Tensor running, const at::Tensor& now) {
    running.mul_(1 - operands.momentum).add_(now.to(running.scalar_type()), operands.momentum);
  };
  if (operands.running_mean.defined()) move(operands.running_mean, moments.mean);
  if (operands.running_var.defined()) move(operands.running_var, moments.deviations / (moments.count - 1));
}

// Returns two sums per channel over this rank's batch: the sum of the output gradient, and the sum of its products with
// the normalised input.
std::pair<at::Tensor, at::Tensor> local_sums(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean,
                                             const at::Tensor& variance, double eps) {
  if (input.numel() == 0) return {at::zeros_like(mean), at::zeros_like(mean)};
  auto [unused, products, sum] = at::native_batch_norm_backward(grad, input, {}, mean, variance, {}, {},
                                                                /*train=*/false, eps, {false, true, true});
  return {sum, products};
}

// A SyncGroup that an autograd node can save.
struct SavedSyncGroup : torch::CustomClassHolder {
  explicit SavedSyncGroup(SyncGroup of) : group(std::move(of)) {}
  SyncGroup group;
};

struct Normalization : torch::autograd::Function<Normalization> {
  // `weight` and `bias` have the dtype of `mean`.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const Moments& moments, double eps,
                            const SyncGroup& group) {
    const auto dtype = computed_in(input.scalar_type());
    const auto mean = moments.mean.to(dtype), variance = moments.variance().to(dtype);
    const auto rsqrt = (variance + eps).rsqrt();
    const auto factor = weight ? *weight * rsqrt : rsqrt;
    const auto addend = bias ? *bias - mean * factor : -mean * factor;
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, variance, moments.count});
    context->saved_data["eps"] = eps;
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["sync_group"] = c10::IValue::make_capsule(c10::make_intrusive<SavedSyncGroup>(group));
    return scaled(input.to(dtype), factor, along_channels(addend, input)).to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto kept = context->saved_data["sync_group"].toCapsule();
    const auto& group = static_cast<const SavedSyncGroup&>(*kept).group;
    require(!at::GradMode::is_enabled(), group.process_group->where("backward of " + group.name),
            "a batch norm over several ranks has no second derivative. Leave out create_graph, or put the module into "
            "evaluation mode, eval(), where you need a second derivative");
    const auto saved = context->get_saved_variables();
    const auto &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const auto dtype = mean.scalar_type();
    const auto input = saved[0].to(dtype), grad = grads[0].to(dtype);
    const double eps = context->saved_data["eps"].toDouble();
    const auto [sum, products] = local_sums(grad, input, mean, variance, eps);

    variable_list result(6);
    if (weight.defined()) result[1] = products;
    if (context->saved_data["has_bias"].toBool()) result[2] = sum;
    if (!context->needs_input_grad(0)) return result;
    // The input gradient is factor * (grad - mean(grad) - normalised * mean(grad * normalised)), where the means are
    // over the batches of all ranks.
    auto sums = at::cat({sum, products}).to(at::kDouble);
    if (!group.rank->has_data) sums.zero_();
    group.communicator->all_reduce(sums, ReduceOp::kSum, {"gradient of " + group.name, {}})->wait();
    const auto means = (sums / saved[4].clamp_min(1)).to(dtype).chunk(2);
    const auto rsqrt = (variance + eps).rsqrt();
    const auto factor = weight.defined() ? weight * rsqrt : rsqrt;
    const auto slope = -factor * rsqrt * means[1];
    const auto constant = -factor * means[0] - slope * mean;
    result[0] = scaled(grad, factor, scaled(input, slope, along_channels(constant, input))).to(saved[0].scalar_type());
    return result;
  }
};

// Returns a copy of a parameter, which autograd records. The operators that follow get an unsharded tensor, so backward
// does not gather the parameter, and they compute in the dtype of the statistics, whatever param_dtype the group has.
std::optional<at::Tensor> plain(const at::Tensor& parameter, c10::ScalarType dtype) {
  if (!parameter.defined()) return std::nullopt;
  return parameter.clone().to(dtype);
}

}  // namespace

SyncGroup sync_group_of(const std::shared_ptr<ProcessGroup>& ranks, const std::string& name) {
  return {ranks, Attachment::queue_for(*ranks, ranks, "batch norms"), name, Attachment::of<runtime::RankState>(*ranks)};
}

at::Tensor synced_batch_norm(const NormOperands& operands, const SyncGroup& group) {
  const auto& input = operands.input;
  Moments moments;
  {
    const at::NoGradGuard no_grad;
    const auto counted = group.rank->has_data ? input : input.narrow(0, 0, 0);
    moments = joined_moments(counted, group);
    // All ranks together can have too few values only if this rank has at most one. Only then does the host wait for
    // the device to read the count.
    const bool may_be_few = values_per_channel(counted) < 2;
    const auto values = may_be_few ? moments.count.item<int64_t>() : 2;
    require(values != 1, group.process_group->where("forward of " + group.name),
            "Expected more than 1 value per channel when training, found 1 on all ranks together. This rank's input "
            "has sizes ",
            input.sizes(), ". Use a larger batch, or put the module into evaluation mode: eval()");
    if (values > 0) move_on(operands, moments);
  }
  const auto dtype = computed_in(input.scalar_type());
  return Normalization::apply(input, plain(operands.weight, dtype), plain(operands.bias, dtype), moments, operands.eps,
                              group);
}

}  // namespace fsdp::modules
