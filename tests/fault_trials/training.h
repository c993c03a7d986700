#pragma once
/// \file
/// What the ranks of a trial do: they train a small model by every part of the library that communicates.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace fsdp::test {

/// How the program of one rank differs from that of the others.
enum class Divergence : uint8_t {
  kNone,
  kOtherModel,        ///< a layer of another size
  kOtherGroups,       ///< blocks that are not groups of their own
  kOtherDtype,        ///< a collective of another dtype
  kOtherSize,         ///< a collective of another size
  kOtherOrder,        ///< two collectives in the opposite order
  kOtherOperation,    ///< a broadcast instead of a sum
  kForwardAlone,      ///< an extra forward
  kBackwardAlone,     ///< an extra backward
  kStepAlone,         ///< an extra optimizer step
  kWholeTensorAlone,  ///< an extra full_tensor
  kNormAlone,         ///< an extra clip_grad_norm_
  kExceptionAlone,    ///< an exception in forward, then reset_iter_state
};
constexpr int kDivergences = 13;

const char* name_of(Divergence divergence);

/// How one rank leaves the others in the middle of the training.
enum class Departure : uint8_t {
  kNone,
  kThrow,         ///< an exception in forward
  kReturn,        ///< the training returns
  kExit,          ///< std::exit
  kSkip,          ///< it leaves a step out
  kThrowInStage,  ///< an exception in its stage of a pipeline
};
constexpr int kDepartures = 6;

const char* name_of(Departure departure);

struct TrainingPlan {
  std::string backend;
  /// With port 0, the ranks meet where their launcher says.
  int rank = 0, world_size = 1, port = 0;
  std::chrono::milliseconds timeout{};
  bool reshards = true;
  /// Each step also runs a pipeline with one stage on each rank. 4 ranks have two stages, each over two ranks: along a
  /// data axis if `reshards`, otherwise along a tensor axis.
  bool has_stages = false;
  Divergence divergence = Divergence::kNone;
  Departure departure = Departure::kNone;
  /// The rank that diverges or leaves.
  int divergent_rank = -1;
};

/// Runs in its own process. Returns a hash of the trained parameters, which is the same on every rank. `tell_mismatch`
/// gets the Mismatch that a divergence after `fully_shard` causes; the ranks then start over and train on.
uint64_t train(const TrainingPlan& plan, const std::function<void(const std::string&)>& tell_mismatch);

}  // namespace fsdp::test
