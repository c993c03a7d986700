#include "optim/row_sums.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/max.h>

#include <algorithm>
#include <cmath>
#include <mutex>

namespace fsdp::optim {
namespace {

constexpr int64_t kLanes = 8;                 // number of partial sums of a row, so that the loop can be vectorised
constexpr int64_t kSumsGrain = 32'768;        // least number of elements for a thread
constexpr int64_t kChunk = int64_t{1} << 22;  // number of elements that other devices convert to fp64 at a time

// Returns the sum of term(first), ..., term(first + numel - 1).
template <class Term>
double sum_of_row(int64_t first, int64_t numel, const Term& term) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(first + i + lane);
  for (int64_t lane = 0; i + lane < numel; ++lane) lanes[lane] += term(first + i + lane);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// Returns the exact sum of the sums of the rows. `term` returns the addend of an element in fp64.
template <class Sum, class Term>
Sum sum_of_rows(int64_t rows, int64_t row_numel, const Term& term) {
  Sum sum;
  std::mutex mutex;
  at::parallel_for(0, rows, std::max<int64_t>(1, kSumsGrain / row_numel), [&](int64_t begin, int64_t end) {
    Sum part;
    for (int64_t row = begin; row < end; ++row) part.add(sum_of_row(row * row_numel, row_numel, term));
    const std::lock_guard lock(mutex);
    sum.add(part);
  });
  return sum;
}

template <class T>
ExactSum sum_of_powers_on_cpu(const T* data, int64_t rows, int64_t row_numel, double p) {
  const auto at = [data](int64_t i) { return static_cast<double>(data[i]); };
  if (p == 2) return sum_of_rows<ExactSum>(rows, row_numel, [=](int64_t i) { return at(i) * at(i); });
  if (p == 1) return sum_of_rows<ExactSum>(rows, row_numel, [=](int64_t i) { return std::abs(at(i)); });
  return sum_of_rows<ExactSum>(rows, row_numel, [=](int64_t i) { return std::pow(std::abs(at(i)), p); });
}

// Returns the exact sum of the sums of the rows. `terms(first, count)` returns the addends of `count` rows, beginning
// with row `first`, as an fp64 matrix on the device.
template <class Sum, class Terms>
Sum sum_on_device(int64_t rows, int64_t row_numel, const Terms& terms) {
  const int64_t rows_at_once = std::max<int64_t>(1, kChunk / row_numel);
  Sum sum;
  for (int64_t first = 0; first < rows; first += rows_at_once) {
    const at::Tensor sums = terms(first, std::min(rows_at_once, rows - first)).sum(1).cpu();
    for (int64_t row = 0; row < sums.numel(); ++row) sum.add(sums.const_data_ptr<double>()[row]);
  }
  return sum;
}

at::Tensor some_rows(const at::Tensor& values, int64_t row_numel, int64_t first, int64_t count) {
  const auto matrix = values.as_strided({values.numel() / row_numel, row_numel}, {row_numel, 1});
  return matrix.narrow(0, first, count).to(at::kDouble);
}

}  // namespace

ExactSum sum_of_powers(const at::Tensor& values, int64_t row_numel, double p) {
  if (values.numel() == 0) return {};
  if (!values.is_floating_point()) return sum_of_powers(values.to(at::kDouble), row_numel, p);
  const int64_t rows = values.numel() / row_numel;
  if (!values.is_cpu())
    return sum_on_device<ExactSum>(rows, row_numel, [&](int64_t first, int64_t count) {
      return some_rows(values, row_numel, first, count).abs().pow(p);
    });
  ExactSum sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "sum_of_powers", [&] {
    sum = sum_of_powers_on_cpu(values.const_data_ptr<scalar_t>(), rows, row_numel, p);
  });
  return sum;
}

SignedExactSum sum_of_elements(const at::Tensor& values, int64_t row_numel) {
  if (values.numel() == 0) return {};
  if (!values.is_floating_point()) return sum_of_elements(values.to(at::kDouble), row_numel);
  const int64_t rows = values.numel() / row_numel;
  if (!values.is_cpu())
    return sum_on_device<SignedExactSum>(
        rows, row_numel, [&](int64_t first, int64_t count) { return some_rows(values, row_numel, first, count); });
  SignedExactSum sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "sum_of_elements", [&] {
    const auto* data = values.const_data_ptr<scalar_t>();
    sum = sum_of_rows<SignedExactSum>(rows, row_numel, [data](int64_t i) { return static_cast<double>(data[i]); });
  });
  return sum;
}

SignedExactSum sum_of_products(const at::Tensor& left, const at::Tensor& right, int64_t row_numel) {
  if (left.numel() == 0) return {};
  const int64_t rows = left.numel() / row_numel;
  if (!left.is_cpu())
    return sum_on_device<SignedExactSum>(rows, row_numel, [&](int64_t first, int64_t count) {
      return some_rows(left, row_numel, first, count) * some_rows(right, row_numel, first, count);
    });
  SignedExactSum sum;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, left.scalar_type(), "sum_of_products", [&] {
    const auto* a = left.const_data_ptr<scalar_t>();
    const auto* b = right.const_data_ptr<scalar_t>();
    sum = sum_of_rows<SignedExactSum>(rows, row_numel,
                                      [=](int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
  });
  return sum;
}

double max_magnitude(const at::Tensor& values) { return values.numel() == 0 ? 0.0 : values.abs().max().item<double>(); }

}  // namespace fsdp::optim
