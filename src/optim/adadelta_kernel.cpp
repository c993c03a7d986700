#include "optim/adadelta_kernel.h"

#include <ATen/Parallel.h>

#include <cmath>

namespace fsdp::optim {
namespace {

// Elements that are worth a thread.
constexpr int64_t kGrain = 1 << 15;

template <class T>
struct Flat {
  T* __restrict rows;
  const T* __restrict gradient;
  T* __restrict square_avg;
  T* __restrict acc_delta;
};

template <class T>
void update_stretch(Flat<T> at, int64_t count, const AdadeltaOptions& options) {
  const auto lr = static_cast<T>(options.lr()), rho = static_cast<T>(options.rho()),
             rest = static_cast<T>(1 - options.rho()), eps = static_cast<T>(options.eps()),
             weight_decay = static_cast<T>(options.weight_decay());
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = at.gradient[i] + weight_decay * at.rows[i];
    const T square_avg = at.square_avg[i] * rho + rest * gradient * gradient;
    const T delta = std::sqrt(at.acc_delta[i] + eps) / std::sqrt(square_avg + eps) * gradient;
    at.square_avg[i] = square_avg;
    at.acc_delta[i] = at.acc_delta[i] * rho + rest * delta * delta;
    at.rows[i] -= lr * delta;
  }
}

template <class T>
void update_in_one_pass(const at::Tensor& rows, const at::Tensor& gradient, const at::Tensor& square_avg,
                        const at::Tensor& acc_delta, const AdadeltaOptions& options) {
  auto* p = rows.mutable_data_ptr<T>();
  const auto* g = gradient.const_data_ptr<T>();
  auto *v = square_avg.mutable_data_ptr<T>(), *u = acc_delta.mutable_data_ptr<T>();
  at::parallel_for(0, rows.numel(), kGrain, [&](int64_t begin, int64_t end) {
    update_stretch<T>({p + begin, g + begin, v + begin, u + begin}, end - begin, options);
  });
}

void update_by_operators(const at::Tensor& rows, at::Tensor gradient, const at::Tensor& square_avg,
                         const at::Tensor& acc_delta, const AdadeltaOptions& options) {
  if (options.weight_decay() != 0) gradient = gradient.add(rows, options.weight_decay());
  square_avg.mul_(options.rho()).addcmul_(gradient, gradient, 1 - options.rho());
  const auto delta = acc_delta.add(options.eps()).sqrt_();
  delta.div_(square_avg.add(options.eps()).sqrt_()).mul_(gradient);
  acc_delta.mul_(options.rho()).addcmul_(delta, delta, 1 - options.rho());
  rows.add_(delta, -options.lr());
}

}  // namespace

void update_by_adadelta(const at::Tensor& rows, const at::Tensor& gradient, const at::Tensor& square_avg,
                        const at::Tensor& acc_delta, const AdadeltaOptions& options) {
  if (rows.is_cpu() && rows.scalar_type() == at::kFloat)
    return update_in_one_pass<float>(rows, gradient, square_avg, acc_delta, options);
  if (rows.is_cpu() && rows.scalar_type() == at::kDouble)
    return update_in_one_pass<double>(rows, gradient, square_avg, acc_delta, options);
  update_by_operators(rows, gradient, square_avg, acc_delta, options);
}

}  // namespace fsdp::optim
