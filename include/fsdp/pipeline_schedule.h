#pragma once
/// \file
/// Schedules of a pipeline: which rank runs which stage on which micro-batch, and in which order. Schedules are plain
/// data, so a program can check, time and draw them before anything runs.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup pipeline
/// \{

/// Piece of work of one rank: forward or backward of one stage for one slice of the tokens of one micro-batch.
struct PipelineAction {
  /// Direction of an action.
  enum class Kind : uint8_t { kForward, kBackward };
  Kind kind = Kind::kForward;  ///< direction of the action
  int stage = 0;               ///< number of the stage, from 0
  int micro_batch = 0;         ///< number of the micro-batch, from 0
  int slice = 0;               ///< number of the slice of tokens, from 0; always 0 if sequences are whole

  /// Returns a short name: "F2.0" for forward of micro-batch 2 in stage 0, "B2.0:1" for backward of slice 1 of this
  /// micro-batch.
  std::string name() const;
  /// Returns true if all members are equal.
  bool operator==(const PipelineAction&) const = default;
};

/// Actions of every rank of a pipeline axis, in the order in which the rank runs them.
struct PipelineSchedule {
  std::string name;       ///< name of the schedule, for messages and pictures
  int ranks = 1;          ///< number of ranks of the pipeline's axis
  int chunks = 1;         ///< number of stages on each rank; rank r has the stages r, r + ranks, r + 2 * ranks ...
  int micro_batches = 1;  ///< number of micro-batches of a step
  int slices = 1;         ///< number of slices of each micro-batch
  /// Number of tokens of each slice; empty if sequences are whole.
  std::vector<int64_t> slice_lengths = {};
  std::vector<std::vector<PipelineAction>> actions = {};  ///< actions by rank

  /// Returns the number of stages of the model.
  int stages() const { return ranks * chunks; }
  /// Returns the rank that has a stage.
  int rank_of(int stage) const { return stage % ranks; }
};

/// \name Schedules
/// Any rank may call these functions; they do not communicate. They throw UsageError for numbers below 1.
/// \{

/// Returns a schedule in which every rank runs forward of all micro-batches, then backward of all of them, the last one
/// first (Y. Huang et al., GPipe, 2019).
PipelineSchedule gpipe_schedule(int ranks, int micro_batches);

/// Returns a schedule like gpipe_schedule's in which the tokens of each micro-batch are cut into slices of
/// `slice_lengths` tokens. While a stage runs one slice, the stage before it runs the next slice; backward takes the
/// slices in the reverse order (Z. Li et al., TeraPipe, 2021). Only causal models can run such a schedule. plan_slices
/// finds good lengths.
PipelineSchedule terapipe_schedule(int ranks, int micro_batches, std::vector<int64_t> slice_lengths);

/// Returns a schedule in which each rank runs backward of a micro-batch as soon as it can, so that a rank holds the
/// activations of at most `ranks` micro-batches (D. Narayanan et al., PipeDream, 2019, without its stale weights). If
/// `chunks` is above 1, each rank has `chunks` stages, and the idle time shrinks by this factor (D. Narayanan et al.,
/// Efficient Large-Scale Language Model Training, 2021, section 2.2); a rank then holds more activations, and the
/// number of micro-batches must be a multiple of `ranks`.
PipelineSchedule one_forward_one_backward_schedule(int ranks, int micro_batches, int chunks = 1);

/// \}

/// Returns the actions that must have ended before `action` begins, because `action` takes their results.
std::vector<PipelineAction> inputs_of(const PipelineSchedule& schedule, const PipelineAction& action);

/// Throws UsageError if a rank does not have each action of its stages exactly once. Also throws UsageError if the
/// schedule never ends, because an action waits for a later action of its own rank or ranks wait for each other in a
/// circle. The message names the action for which each rank waits. Use this function to check a schedule of your own.
void validate(const PipelineSchedule& schedule);

/// Times at which the actions of a schedule begin and end, in the unit of the durations that were passed to simulate.
struct PipelineTimes {
  /// Times of one action.
  struct Span {
    double begin = 0;  ///< time at which the action begins
    double end = 0;    ///< time at which the action ends
  };
  std::vector<std::vector<Span>> spans = {};  ///< times by rank, in the order of the rank's actions
  double total = 0;                           ///< time at which the last action ends

  /// Returns the share of all ranks' time in which they are idle, between 0 and 1.
  double bubble() const;
};

/// Simulates a schedule: each rank begins an action when its previous action has ended and the inputs of the action
/// have arrived. `duration` returns the time that an action takes, and `transfer` is the time that a result takes to
/// reach another rank. Throws what validate throws.
PipelineTimes simulate(const PipelineSchedule& schedule, const std::function<double(const PipelineAction&)>& duration,
                       double transfer = 0);

/// Returns the schedule as text with a line for each rank, in which a dot is an idle unit of time. `times` is the
/// result of simulate with whole numbers as durations.
std::string to_text(const PipelineSchedule& schedule, const PipelineTimes& times);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
