#include <fsdp/linear_cross_entropy.h>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>

#include "comm/core/check.h"

namespace fsdp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// About kLogitsAtOnce logits, which fit into a processor's cache, are computed at a time, but at least kLeastRowsAtOnce
// rows, because matrix products of fewer rows are slower.
constexpr int64_t kLogitsAtOnce = int64_t{1} << 22, kLeastRowsAtOnce = 64;

// Returns the dtype of sums, which is at least fp32, because sums in lower precision would lose small numbers.
at::ScalarType exact(const at::Tensor& x) { return at::promote_types(x.scalar_type(), at::kFloat); }

// Returns the number of targets that are not ignored, but at least 1, because the sum of losses is divided by it.
at::Tensor counted_rows(const at::Tensor& targets, int64_t ignore_index) {
  return targets.ne(ignore_index).sum().clamp_min(1);
}

// Throws UsageError if a target is not the number of a class. Checks only targets on the CPU, as LibTorch's
// cross_entropy does, because a check on a device would make the host wait for the device.
void require_classes(const at::Tensor& targets, int64_t classes) {
  if (!targets.is_cpu()) return;
  const auto [least, greatest] = at::aminmax(targets);
  require(least.item<int64_t>() >= 0 && greatest.item<int64_t>() < classes,
          "[fsdp] linear_cross_entropy: expected targets from 0 to ", classes - 1, " or ignore_index, found ",
          least.item<int64_t>(), " to ", greatest.item<int64_t>(), '.');
}

struct Sum {
  at::Tensor loss, of_x, of_weight;
};

/// Returns the sum of losses over all rows that are not ignored. If `with_gradients` is true, returns the gradients of
/// this sum with respect to `x` and `weight` as well.
Sum sum_over_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, int64_t ignore_index,
                  bool with_gradients) {
  const int64_t rows = x.size(0), at_once = std::max(kLogitsAtOnce / weight.size(0), kLeastRowsAtOnce);
  Sum sum{torch::zeros({}, x.options().dtype(exact(x))), {}, {}};
  if (with_gradients) sum.of_x = torch::empty_like(x), sum.of_weight = torch::zeros_like(weight, exact(x));
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const auto part = x.narrow(0, first, count);
    auto came = targets.narrow(0, first, count).unsqueeze(1);
    const auto ignored = came.eq(ignore_index);
    const bool ignores = !came.is_cpu() || ignored.any().item<bool>();  // on a device, item() would make the host wait
    if (ignores) came = came.masked_fill(ignored, 0);
    const auto logs = torch::log_softmax(torch::mm(part, weight.t()), 1, exact(x));
    require_classes(came, logs.size(1));
    auto of_rows = logs.gather(1, came);
    if (ignores) of_rows.masked_fill_(ignored, 0);
    sum.loss.sub_(of_rows.sum());
    if (!with_gradients) continue;
    // The gradient with respect to the logits is the probabilities, minus 1 for the target.
    auto gradient = logs.exp_().scatter_add_(1, came, torch::full_like(came, -1, logs.options()));
    if (ignores) gradient.masked_fill_(ignored, 0);
    gradient = gradient.to(x.scalar_type());
    sum.of_x.narrow(0, first, count).copy_(torch::mm(gradient, weight));
    if (exact(x) == x.scalar_type())
      sum.of_weight.addmm_(gradient.t(), part);
    else
      sum.of_weight.add_(torch::mm(gradient.t(), part));
  }
  return sum;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& targets, int64_t ignore_index) {
    const auto sum = sum_over_rows(x, weight, targets, ignore_index, /*with_gradients=*/true);
    const auto count = counted_rows(targets, ignore_index);
    context->save_for_backward({sum.of_x, sum.of_weight, count});
    return sum.loss / count;
  }
  static variable_list backward(AutogradContext* context, const variable_list& of_mean) {
    require(!at::GradMode::is_enabled(),
            "[fsdp] linear_cross_entropy: second derivatives are not supported. Leave out ",
            "create_graph, or use torch's linear and cross_entropy where you need second derivatives.");
    const auto saved = context->get_saved_variables();
    const auto scale = of_mean[0] / saved[2];
    return {saved[0] * scale, (saved[1] * scale).to(saved[0].scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                int64_t ignore_index) {
  constexpr std::string_view kPrefix = "[fsdp] linear_cross_entropy: ";
  require(x.defined() && weight.defined() && targets.defined(), kPrefix,
          "expected three tensors, x, weight and targets, found an undefined one.");
  require(x.dim() == 2 && weight.dim() == 2 && targets.dim() == 1, kPrefix,
          "expected x [rows, features], weight [classes, features] and targets [rows], found sizes ", x.sizes(), ", ",
          weight.sizes(), " and ", targets.sizes(), '.');
  require(x.size(1) == weight.size(1) && x.size(0) == targets.size(0), kPrefix,
          "expected x and weight with the same number of features, and one target for each row of x; found x ",
          x.sizes(), ", weight ", weight.sizes(), " and targets ", targets.sizes(), '.');
  require(x.is_floating_point() && x.scalar_type() == weight.scalar_type() && targets.scalar_type() == at::kLong,
          kPrefix, "expected x and weight of the same floating point dtype and targets of dtype Long, found ",
          x.scalar_type(), ", ", weight.scalar_type(), " and ", targets.scalar_type(), '.');
  if (at::GradMode::is_enabled()) return LinearCrossEntropy::apply(x, weight, targets, ignore_index);
  return sum_over_rows(x, weight, targets, ignore_index, /*with_gradients=*/false).loss /
         counted_rows(targets, ignore_index);
}

}  // namespace fsdp
