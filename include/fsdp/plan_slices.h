#pragma once
/// \file
/// Planner of the lengths of the slices in which a sequence passes through a pipeline, as in TeraPipe (Z. Li et al.,
/// TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models, 2021, section 3.3).

#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup pipeline
/// \{

/// Function that returns the seconds that the slowest stage takes for a slice of `length` tokens after `before` tokens
/// of the same sequence.
using SliceCost = std::function<double(int64_t length, int64_t before)>;

/// Plan that cuts each sequence into slices.
struct SlicePlan {
  std::vector<int64_t> lengths = {};  ///< number of tokens of each slice, in the order of the sequence
  /// Seconds until the last stage has ended: the cost of all slices, plus the cost of the most expensive slice for each
  /// stage after the first.
  double seconds = 0;
};

/// Returns the plan with which sequences of `length` tokens pass through `stages` stages in the least time. This time
/// is the sum of the slices' costs plus `stages - 1` times the largest of these costs. The lengths of slices, except
/// the last one, are multiples of `granularity` tokens. For each bound of the largest cost the function finds the
/// cheapest plan, in time that grows with the square of `length / granularity`. It skips a bound that is within
/// `tolerance` seconds of the last one tried, so the result takes at most `tolerance` seconds per stage longer than the
/// best plan.
///
/// All micro-batches have the same length and are cut in the same way. With several `micro_batches` the sum of the
/// slices' costs counts once for each micro-batch, while the largest cost counts as before. Slicing then saves less
/// time, because ranks are idle less even without slices.
///
/// A plan with one slice means that slicing does not pay. Not collective. Throws UsageError for numbers below 1 and for
/// costs that are negative or not finite.
///
///     auto plan = fsdp::plan_slices(2048, 4, [&](int64_t length, int64_t before) { return cost(length, before); });
SlicePlan plan_slices(int64_t length, int stages, const SliceCost& cost, int64_t granularity = 8, double tolerance = 0,
                      int micro_batches = 1);

/// Plan that cuts a batch into micro-batches, and the sequences of each micro-batch into slices.
struct BatchPlan {
  /// One micro-batch.
  struct MicroBatch {
    int64_t sequences = 0;  ///< number of sequences
    SlicePlan slices = {};  ///< plan of the slices of these sequences
  };
  std::vector<MicroBatch> micro_batches = {};  ///< micro-batches in the order in which they run
  double seconds = 0;                          ///< sum of the seconds of their plans
};

/// Returns the plan of a batch of `sequences` sequences. The function plans the slices for each size of a micro-batch,
/// then chooses sizes that add up to the batch and whose plans together take the least time. `cost_of(n)` returns the
/// cost of slices of n sequences. The other arguments and errors are those of plan_slices.
BatchPlan plan_batch(int64_t sequences, int64_t length, int stages, const std::function<SliceCost(int64_t)>& cost_of,
                     int64_t granularity = 8, double tolerance = 0);

/// Measured time of one slice.
struct SliceTime {
  int64_t length = 0;  ///< number of tokens of the slice
  int64_t before = 0;  ///< number of tokens of the sequence before the slice
  double seconds = 0;  ///< seconds of the forward of one stage
};

/// Model of a slice's cost that is fitted to measurements: t(length, 0) is interpolated between the measured lengths,
/// and t(length, before) = t(length, 0) + a0 + a1 length + a2 before + a3 length before. The coefficients minimise the
/// sum of the squared relative errors.
struct FittedSliceCost {
  std::vector<SliceTime> alone = {};        ///< measurements of slices with no tokens before them, by length
  std::array<double, 4> coefficients = {};  ///< a0 to a3
  double largest_error = 0;                 ///< largest relative error among the measurements

  /// Returns the seconds of a slice, as a SliceCost does.
  double operator()(int64_t length, int64_t before) const;
};

/// Fits the model to `times`. At least one slice must have no tokens before it. If the other slices do not determine
/// all four coefficients, the function takes the smallest coefficients that fit. Throws UsageError if every slice has
/// tokens before it, and for seconds that are not above 0.
FittedSliceCost fit_slice_cost(std::vector<SliceTime> times);

/// Result of Pipeline::tune.
struct SliceTuning {
  SlicePlan plan = {};       ///< best plan; it has one slice if slicing does not pay
  double whole_seconds = 0;  ///< expected seconds of forward with whole sequences
  double largest_error = 0;  ///< largest relative error of the fitted costs among the measurements
  int micro_batches = 1;     ///< number of micro-batches of the forward that plan.seconds and whole_seconds describe
};

/// Prints a sentence such as "3 slices of 24, 20, 20 tokens: forward of 4 micro-batches should take 1.2 ms, and 1.5 ms
/// with whole sequences".
std::ostream& operator<<(std::ostream& out, const SliceTuning& tuning);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
