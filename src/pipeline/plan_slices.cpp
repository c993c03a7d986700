#include <fsdp/plan_slices.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "comm/core/check.h"

namespace fsdp {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The costs of all slices. A slice begins at a multiple of the granularity, and ends at one or at the end of the
// sequence.
class CostTable {
 public:
  CostTable(int64_t length, int64_t granularity, const SliceCost& cost)
      : length_(length), granularity_(granularity), count_((length + granularity - 1) / granularity) {
    for (int64_t end = 1; end <= count_; ++end)
      for (int64_t begin = 0; begin < end; ++begin) {
        const double seconds = cost(length_of(begin, end), begin * granularity);
        require(std::isfinite(seconds) && seconds >= 0, "fsdp plan_slices: the cost of a slice of ",
                length_of(begin, end), " tokens that follow ", begin * granularity, " tokens is ", seconds,
                ". Costs are seconds, which must be finite and not negative");
        seconds_.push_back(seconds);
      }
  }

  int64_t count() const { return count_; }
  int64_t length_of(int64_t begin, int64_t end) const {
    return std::min(end * granularity_, length_) - begin * granularity_;
  }
  double of(int64_t begin, int64_t end) const { return seconds_[static_cast<size_t>(end * (end - 1) / 2 + begin)]; }
  const std::vector<double>& all() const { return seconds_; }

 private:
  const int64_t length_, granularity_, count_;
  std::vector<double> seconds_;
};

// Returns the cheapest cut of the sequence into slices that cost at most `bound` each: S(L) of the TeraPipe paper (Z.
// Li et al., 2021). Its `seconds` are infinite if there is no such cut.
SlicePlan cheapest_within(const CostTable& costs, double bound) {
  const auto count = static_cast<size_t>(costs.count());
  std::vector<double> best(count + 1, kInfinite);
  std::vector<int64_t> begin_of_last(count + 1, 0);
  best[0] = 0;
  for (int64_t end = 1; end <= costs.count(); ++end)
    for (int64_t begin = 0; begin < end; ++begin) {
      const double sum = best[static_cast<size_t>(begin)] + costs.of(begin, end);
      if (costs.of(begin, end) > bound || sum >= best[static_cast<size_t>(end)]) continue;
      best[static_cast<size_t>(end)] = sum;
      begin_of_last[static_cast<size_t>(end)] = begin;
    }
  SlicePlan plan{.seconds = best[count]};
  if (!std::isfinite(plan.seconds)) return plan;
  for (int64_t end = costs.count(); end > 0; end = begin_of_last[static_cast<size_t>(end)])
    plan.lengths.push_back(costs.length_of(begin_of_last[static_cast<size_t>(end)], end));
  std::ranges::reverse(plan.lengths);
  return plan;
}

}  // namespace

SlicePlan plan_slices(int64_t length, int stages, const SliceCost& cost, int64_t granularity, double tolerance,
                      int micro_batches) {
  for (const auto& [name, number] :
       {std::pair("length", length), std::pair("stages", int64_t{stages}), std::pair("granularity", granularity),
        std::pair("micro_batches", int64_t{micro_batches})})
    require(number >= 1, "fsdp plan_slices: expected a value of at least 1 for '", name, "', found ", number);
  const CostTable costs(length, granularity, cost);
  auto bounds = costs.all();
  std::ranges::sort(bounds);
  SlicePlan best{.seconds = kInfinite};
  double last_tried = -kInfinite;
  for (size_t i = 0; i < bounds.size(); ++i) {
    // A plan in which the slowest slice costs `bounds[i]` takes that time for each micro-batch and each further stage,
    // so neither this bound nor a larger one can improve on `best`.
    if ((micro_batches + stages - 1) * bounds[i] >= best.seconds) break;
    const bool is_last_of_its_value = i + 1 == bounds.size() || bounds[i + 1] > bounds[i];
    if (!is_last_of_its_value || bounds[i] - last_tried <= tolerance) continue;
    last_tried = bounds[i];
    auto plan = cheapest_within(costs, bounds[i]);
    plan.seconds = micro_batches * plan.seconds + (stages - 1) * bounds[i];
    if (plan.seconds < best.seconds) best = std::move(plan);
  }
  return best;
}

BatchPlan plan_batch(int64_t sequences, int64_t length, int stages, const std::function<SliceCost(int64_t)>& cost_of,
                     int64_t granularity, double tolerance) {
  require(sequences >= 1, "fsdp plan_batch: expected a value of at least 1 for 'sequences', found ", sequences);
  std::vector<SlicePlan> of_size;  // element i is the plan for a micro-batch of i + 1 sequences
  for (int64_t size = 1; size <= sequences; ++size)
    of_size.push_back(plan_slices(length, stages, cost_of(size), granularity, tolerance));
  std::vector<double> best(static_cast<size_t>(sequences) + 1, kInfinite);
  std::vector<size_t> size_of_last(best.size(), 0);
  best[0] = 0;
  for (size_t total = 1; total < best.size(); ++total)
    for (size_t size = 1; size <= total; ++size)
      if (const double sum = best[total - size] + of_size[size - 1].seconds; sum < best[total]) {
        best[total] = sum;
        size_of_last[total] = size;
      }
  BatchPlan plan{.seconds = best.back()};
  for (size_t total = best.size() - 1; total > 0; total -= size_of_last[total])
    plan.micro_batches.push_back({static_cast<int64_t>(size_of_last[total]), of_size[size_of_last[total] - 1]});
  return plan;
}

}  // namespace fsdp
