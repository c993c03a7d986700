#pragma once
/// \file
/// Schedules of a pipeline: which rank runs which stage on which micro-batch, in which order. They are plain data, so
/// that they can be checked, timed and drawn before anything runs.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup pipeline
/// \{

/// A piece of work of one rank: one stage goes forward or backward with one slice of the tokens of one micro-batch.
struct PipelineAction {
  /// In which direction.
  enum class Kind : uint8_t { kForward, kBackward };
  Kind kind = Kind::kForward;  ///< the direction
  int stage = 0;               ///< the stage's number
  int micro_batch = 0;         ///< the micro-batch's number
  int slice = 0;               ///< the number of the slice of tokens; always 0 where sequences stay whole

  /// E.g. "F2.0" for forward of micro-batch 2 in stage 0, "B2.0:1" for backward of its slice 1.
  std::string name() const;
  /// Compares all members.
  bool operator==(const PipelineAction&) const = default;
};

/// The actions of every rank of a pipeline axis, in the order in which the rank runs them.
struct PipelineSchedule {
  std::string name;       ///< for messages and pictures
  int ranks = 1;          ///< ranks of the pipeline's axis
  int chunks = 1;         ///< stages that a rank holds; rank r holds r, r + ranks, r + 2 * ranks and so on
  int micro_batches = 1;  ///< micro-batches of a step
  int slices = 1;         ///< slices of each micro-batch
  /// Tokens of each slice; empty where sequences stay whole.
  std::vector<int64_t> slice_lengths = {};
  std::vector<std::vector<PipelineAction>> actions = {};  ///< by rank

  /// The number of stages of the model.
  int stages() const { return ranks * chunks; }
  /// The rank that holds a stage.
  int rank_of(int stage) const { return stage % ranks; }
};

/// \name Schedules
/// Any rank may call these; nothing is communicated. They throw UsageError for numbers below 1.
/// \{

/// Every rank runs all micro-batches forward, then all of them backward, the last one first (Y. Huang et al., GPipe,
/// 2019).
PipelineSchedule gpipe_schedule(int ranks, int micro_batches);

/// The same, but the tokens of each micro-batch pass in slices of these lengths, one behind the other, and backward
/// takes them in the reverse order: while a stage has one slice, the stage before it has the next one (Z. Li et al.,
/// TeraPipe, 2021). Only causal models can run so. plan_slices finds lengths.
PipelineSchedule terapipe_schedule(int ranks, int micro_batches, std::vector<int64_t> slice_lengths);

/// Each rank goes backward as soon as it can, so it holds the activations of at most `ranks` micro-batches (D.
/// Narayanan et al., PipeDream, 2019, without its stale weights). With `chunks` above 1 each rank holds so many stages,
/// and the idle time shrinks by that factor (D. Narayanan et al., Efficient Large-Scale Language Model Training, 2021,
/// section 2.2); the number of micro-batches must then be a multiple of `ranks`.
PipelineSchedule one_forward_one_backward_schedule(int ranks, int micro_batches, int chunks = 1);

/// \}

/// The actions that must have ended before `action` begins: those whose results it takes.
std::vector<PipelineAction> inputs_of(const PipelineSchedule& schedule, const PipelineAction& action);

/// Throws UsageError unless every rank has each action of its stages once and the ranks come to an end: no action waits
/// for one that comes later on its own rank, and no ranks wait for each other in a circle. The message names what each
/// rank waits for. A program may check a schedule of its own with it.
void validate(const PipelineSchedule& schedule);

/// When each action of a schedule begins and ends, in the unit of the durations that were given.
struct PipelineTimes {
  /// One action of a rank.
  struct Span {
    double begin = 0;  ///< when it begins
    double end = 0;    ///< when it ends
  };
  std::vector<std::vector<Span>> spans = {};  ///< by rank, in the order of its actions
  double total = 0;                           ///< until the last action ends

  /// The share of all ranks' time in which they are idle, between 0 and 1.
  double bubble() const;
};

/// Times a schedule: each rank begins an action when its previous one has ended and its inputs are there. `duration`
/// says how long an action takes, and `transfer` how long a result takes to another rank. Throws what validate throws.
PipelineTimes simulate(const PipelineSchedule& schedule, const std::function<double(const PipelineAction&)>& duration,
                       double transfer = 0);

/// The schedule as text, a line for each rank; an idle unit of time is a dot. `times` come from simulate with whole
/// numbers as durations.
std::string to_text(const PipelineSchedule& schedule, const PipelineTimes& times);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
