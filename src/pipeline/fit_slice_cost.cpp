#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <fsdp/plan_slices.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "comm/core/check.h"

namespace fsdp {
namespace {

std::array<double, 4> terms_of(int64_t length, int64_t before) {
  const auto i = static_cast<double>(length), j = static_cast<double>(before);
  return {1, i, j, i * j};
}

// Returns the seconds of a slice at the beginning of a sequence. Interpolates linearly between the measured lengths;
// beyond them the time is proportional to the length.
double seconds_alone(const std::vector<SliceTime>& alone, int64_t length) {
  const auto above = std::ranges::lower_bound(alone, length, {}, &SliceTime::length);
  if (above != alone.end() && above->length == length) return above->seconds;
  if (above == alone.begin() || above == alone.end()) {
    const auto& nearest = above == alone.end() ? alone.back() : alone.front();
    return nearest.seconds * static_cast<double>(length) / static_cast<double>(nearest.length);
  }
  const auto& below = *std::prev(above);
  const double share = static_cast<double>(length - below.length) / static_cast<double>(above->length - below.length);
  return below.seconds + share * (above->seconds - below.seconds);
}

}  // namespace

double FittedSliceCost::operator()(int64_t length, int64_t before) const {
  double seconds = seconds_alone(alone, length);
  if (before == 0) return seconds;
  const auto terms = terms_of(length, before);
  for (size_t i = 0; i < terms.size(); ++i) seconds += coefficients[i] * terms[i];
  return std::max(seconds, 0.0);
}

FittedSliceCost fit_slice_cost(std::vector<SliceTime> times) {
  for (const auto& time : times)
    require(time.seconds > 0, "fsdp fit_slice_cost: expected seconds above 0, found ", time.seconds, " for a slice of ",
            time.length, " tokens. Measure the time of this slice with a finer clock");
  const auto others = std::partition(times.begin(), times.end(), [](const auto& time) { return time.before == 0; });
  FittedSliceCost cost{.alone = {times.begin(), others}};
  require(!cost.alone.empty(),
          "fsdp fit_slice_cost: expected the time of at least one slice at the beginning of a sequence, found none. "
          "Measure such slices too");
  std::ranges::sort(cost.alone, {}, &SliceTime::length);
  if (others != times.end()) {
    // Each equation is divided by its measured seconds, so that the fit minimises relative errors and short slices
    // count as much as long ones.
    std::vector<double> term_values, more_values;
    for (const auto& time : std::span(others, times.end())) {
      for (const double term : terms_of(time.length, time.before)) term_values.push_back(term / time.seconds);
      more_values.push_back(1 - seconds_alone(cost.alone, time.length) / time.seconds);
    }
    const auto more = at::tensor(more_values).unsqueeze(1);
    const auto terms = at::tensor(term_values).view({-1, 4});
    // Positions are in the thousands and their products in the millions. Dividing each column by its maximum avoids the
    // rounding errors that such different magnitudes would cause.
    const auto sizes = terms.abs().amax(0);
    const auto solved = std::get<0>(at::linalg_lstsq(terms / sizes, more, std::nullopt, "gelsd")).squeeze(1) / sizes;
    std::ranges::copy_n(solved.contiguous().const_data_ptr<double>(), 4, cost.coefficients.begin());
  }
  for (const auto& time : times)
    cost.largest_error = std::max(cost.largest_error, std::abs(cost(time.length, time.before) / time.seconds - 1));
  return cost;
}

}  // namespace fsdp
