#include "models/linear_cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>

namespace models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// So many logits stay in a processor's cache, and products of so many rows are as fast as larger ones.
constexpr int64_t kLogitsAtOnce = int64_t{1} << 22, kLeastRowsAtOnce = 64;

// In the sums of low precision small numbers would be lost.
at::ScalarType exact(const at::Tensor& x) { return at::promote_types(x.scalar_type(), at::kFloat); }

struct Sum {
  at::Tensor loss, of_x, of_weight;
};

/// Over the rows: the loss and, `with_gradients`, its gradients.
Sum sum_over_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, bool with_gradients) {
  const int64_t rows = x.size(0), at_once = std::max(kLogitsAtOnce / weight.size(0), kLeastRowsAtOnce);
  Sum sum{torch::zeros({}, x.options().dtype(exact(x))), {}, {}};
  if (with_gradients) sum.of_x = torch::empty_like(x), sum.of_weight = torch::zeros_like(weight, exact(x));
  for (int64_t first = 0; first < rows; first += at_once) {
    const int64_t count = std::min(at_once, rows - first);
    const auto part = x.narrow(0, first, count);
    const auto came = targets.narrow(0, first, count).unsqueeze(1);
    const auto logs = torch::log_softmax(torch::mm(part, weight.t()), 1, exact(x));
    sum.loss.sub_(logs.gather(1, came).sum());
    if (!with_gradients) continue;
    // Of a row's loss by its logits: the probabilities, less one for the token that came.
    const auto gradient =
        logs.exp_().scatter_add_(1, came, torch::full_like(came, -1, logs.options())).to(x.scalar_type());
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
                            const at::Tensor& targets) {
    const auto sum = sum_over_rows(x, weight, targets, /*with_gradients=*/true);
    context->save_for_backward({sum.of_x, sum.of_weight});
    return sum.loss / x.size(0);
  }
  static variable_list backward(AutogradContext* context, const variable_list& of_mean) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "linear_cross_entropy has first derivatives only: no create_graph");
    const auto saved = context->get_saved_variables();
    const auto scale = of_mean[0] / saved[0].size(0);
    return {saved[0] * scale, (saved[1] * scale).to(saved[0].scalar_type()), {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets) {
  if (at::GradMode::is_enabled()) return LinearCrossEntropy::apply(x, weight, targets);
  return sum_over_rows(x, weight, targets, /*with_gradients=*/false).loss / x.size(0);
}

}  // namespace models
