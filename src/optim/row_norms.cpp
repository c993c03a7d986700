#include "optim/row_norms.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/max.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace fsdp::optim {
namespace {

constexpr int64_t kLanes = 8;                 // partial sums of a row; the compiler makes vectors of them
constexpr int64_t kGrain = 32'768;            // elements for which a thread is worth it
constexpr int64_t kChunk = int64_t{1} << 22;  // elements in fp64 at a time on other devices

template <class T, class Power>
double sum_of_row(const T* row, int64_t numel, const Power& power) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += power(static_cast<double>(row[i + lane]));
  for (int64_t lane = 0; i + lane < numel; ++lane) lanes[lane] += power(static_cast<double>(row[i + lane]));
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <class T, class Power>
ExactSum sum_of_rows(const T* data, int64_t rows, int64_t row_numel, const Power& power) {
  ExactSum sum;
  std::mutex mutex;
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / row_numel), [&](int64_t begin, int64_t end) {
    ExactSum part;
    for (int64_t row = begin; row < end; ++row) part.add(sum_of_row(data + row * row_numel, row_numel, power));
    std::lock_guard lock(mutex);
    sum.add(part);
  });
  return sum;
}

template <class T>
ExactSum sum_on_cpu(const T* data, int64_t rows, int64_t row_numel, double p) {
  if (p == 2) return sum_of_rows(data, rows, row_numel, [](double x) { return x * x; });
  if (p == 1) return sum_of_rows(data, rows, row_numel, [](double x) { return std::abs(x); });
  return sum_of_rows(data, rows, row_numel, [p](double x) { return std::pow(std::abs(x), p); });
}

ExactSum sum_on_device(const at::Tensor& gradient, int64_t rows, int64_t row_numel, double p) {
  const auto matrix = gradient.as_strided({rows, row_numel}, {row_numel, 1});
  const int64_t rows_at_once = std::max<int64_t>(1, kChunk / row_numel);
  ExactSum sum;
  for (int64_t first = 0; first < rows; first += rows_at_once) {
    const auto chunk = matrix.narrow(0, first, std::min(rows_at_once, rows - first)).to(at::kDouble);
    const auto sums = chunk.abs().pow(p).sum(1).cpu();
    for (int64_t row = 0; row < sums.numel(); ++row) sum.add(sums.const_data_ptr<double>()[row]);
  }
  return sum;
}

}  // namespace

ExactSum sum_of_powers(const at::Tensor& gradient, int64_t row_numel, double p) {
  if (gradient.numel() == 0) return {};
  const int64_t rows = gradient.numel() / row_numel;
  if (!gradient.is_cpu()) return sum_on_device(gradient, rows, row_numel, p);
  ExactSum sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, gradient.scalar_type(), "clip_grad_norm_",
                                  [&] { sum = sum_on_cpu(gradient.const_data_ptr<scalar_t>(), rows, row_numel, p); });
  return sum;
}

double max_magnitude(const at::Tensor& gradient) {
  return gradient.numel() == 0 ? 0.0 : gradient.abs().max().item<double>();
}

}  // namespace fsdp::optim
