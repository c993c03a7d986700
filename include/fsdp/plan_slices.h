#pragma once
/// \file
/// How long the slices of a sequence should be that pass a pipeline one behind the other: the planner of TeraPipe
/// (Z. Li et al., TeraPipe: Token-Level Pipeline Parallelism for Training Large-Scale Language Models, 2021, section
/// 3.3).

#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup pipeline
/// \{

/// The seconds that the slowest stage takes for a slice of `length` tokens behind `before` tokens of the same sequence.
using SliceCost = std::function<double(int64_t length, int64_t before)>;

/// A cut of one sequence into slices.
struct SlicePlan {
  std::vector<int64_t> lengths = {};  ///< in the order of the tokens
  /// The time until the last stage has ended: that of all slices, and of the longest once more for each further stage.
  double seconds = 0;
};

/// Finds the cut of `length` tokens that passes `stages` stages soonest: the least sum of its slices' costs plus
/// `stages - 1` times the largest one. Slices are multiples of `granularity` tokens, but for the last one. Bounds of
/// the largest cost that lie closer together than `tolerance` seconds are tried once, so the result is at most
/// `tolerance` seconds for each stage above the best. Each bound takes time that grows with the square of `length /
/// granularity`.
///
/// With several `micro_batches`, all of which have one length and are cut alike, the slices' costs count once for each
/// of them, and the largest cost as before: ranks are then less idle without slices, too.
///
/// A plan of one slice says that slicing does not pay. Nothing is communicated. Throws UsageError for numbers below 1
/// and for costs that are negative or not finite.
///
///     auto plan = fsdp::plan_slices(2048, 4, [&](int64_t length, int64_t before) { return cost(length, before); });
SlicePlan plan_slices(int64_t length, int stages, const SliceCost& cost, int64_t granularity = 8, double tolerance = 0,
                      int micro_batches = 1);

/// A cut of a batch into micro-batches, and of each of them into slices.
struct BatchPlan {
  /// One micro-batch.
  struct MicroBatch {
    int64_t sequences = 0;  ///< the number of its sequences
    SlicePlan slices = {};  ///< how each of them is cut
  };
  std::vector<MicroBatch> micro_batches = {};  ///< in the order in which they run
  double seconds = 0;                          ///< the sum of their plans' seconds
};

/// Cuts a batch of `sequences` sequences as well: plans the slices of a micro-batch of each size, then chooses sizes
/// that add up to the batch and whose plans take the least time together. `cost_of(n)` gives the costs of slices of n
/// sequences. Otherwise as plan_slices.
BatchPlan plan_batch(int64_t sequences, int64_t length, int stages, const std::function<SliceCost(int64_t)>& cost_of,
                     int64_t granularity = 8, double tolerance = 0);

/// One measured slice.
struct SliceTime {
  int64_t length = 0;  ///< its tokens
  int64_t before = 0;  ///< the tokens of its sequence before it
  double seconds = 0;  ///< of the forward of one stage
};

/// The model of a slice's cost, fitted to measurements: t(length, 0) is interpolated between the measured lengths, and
/// t(length, before) = t(length, 0) + a0 + a1 length + a2 before + a3 length before, by least squares of the errors as
/// shares of the measurements.
struct FittedSliceCost {
  std::vector<SliceTime> alone = {};        ///< with nothing before them, by length
  std::array<double, 4> coefficients = {};  ///< a0 to a3
  double largest_error = 0;                 ///< among the measurements, as a share of each

  /// The seconds of a slice, as a SliceCost.
  double operator()(int64_t length, int64_t before) const;
};

/// Fits the model. `times` need at least one slice with nothing before it; without four others that tell the
/// coefficients apart the ones of least size are taken. Throws UsageError without such a slice, and for seconds that
/// are not above 0.
FittedSliceCost fit_slice_cost(std::vector<SliceTime> times);

/// What measuring the stages of a pipeline tells about slices (Pipeline::tune).
struct SliceTuning {
  SlicePlan plan = {};       ///< the best plan; it has one slice if slicing does not pay
  double whole_seconds = 0;  ///< what forward of the same micro-batches should take with whole sequences
  double largest_error = 0;  ///< how far the fitted costs are from a measurement at most, as a share of that
  int micro_batches = 1;     ///< the micro-batches whose forward both times are of
};

/// "3 slices of 24, 20, 20 tokens: forward of 4 micro-batches should take 1.2 ms, and 1.5 ms with whole sequences".
std::ostream& operator<<(std::ostream& out, const SliceTuning& tuning);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
