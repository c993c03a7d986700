#pragma once
/// \file
/// The training job of a trial's ranks: a small model that uses every part of the library that communicates.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace fsdp::test {

/// The difference between one rank's program and the program of the other ranks.
enum class Divergence : uint8_t {
  kNone,
  kOtherModel,        ///< a layer has another size
  kOtherGroups,       ///< blocks are not param groups of their own
  kOtherDtype,        ///< a collective has another dtype
  kOtherSize,         ///< a collective has another size
  kOtherOrder,        ///< two collectives run in the opposite order
  kOtherOperation,    ///< a broadcast runs instead of a sum
  kForwardAlone,      ///< the rank runs an extra forward
  kBackwardAlone,     ///< the rank runs an extra backward
  kStepAlone,         ///< the rank takes an extra optimizer step
  kWholeTensorAlone,  ///< the rank calls full_tensor once more
  kNormAlone,         ///< the rank calls clip_grad_norm_ once more
  kExceptionAlone,    ///< forward throws an exception, and reset_iter_state follows
};
constexpr int kDivergences = 13;

const char* name_of(Divergence divergence);

/// The way in which one rank leaves the others in the middle of the training.
enum class Departure : uint8_t {
  kNone,
  kThrow,         ///< forward throws an exception
  kReturn,        ///< the training function returns
  kExit,          ///< the program calls std::exit
  kSkip,          ///< the rank leaves out a step
  kThrowInStage,  ///< the rank's stage of a pipeline throws an exception
};
constexpr int kDepartures = 6;

const char* name_of(Departure departure);

struct TrainingPlan {
  std::string backend;
  /// Port 0 makes the ranks meet at the address that their launcher gives.
  int rank = 0, world_size = 1, port = 0;
  std::chrono::milliseconds timeout{};
  bool reshards = true;
  /// Each step also runs a pipeline with one stage on each rank. 4 ranks have two stages, each over two ranks: along a
  /// data axis if `reshards`, otherwise along a tensor axis.
  bool has_stages = false;
  Divergence divergence = Divergence::kNone;
  Departure departure = Departure::kNone;
  /// Rank that diverges or leaves.
  int divergent_rank = -1;
};

/// Trains as one rank, in its own process. Returns a hash of the trained parameters, which is the same on every rank.
/// `tell_mismatch` is called with the message of the Mismatch that a divergence after `fully_shard` causes; the ranks
/// then start over and train on.
uint64_t train(const TrainingPlan& plan, const std::function<void(const std::string&)>& tell_mismatch);

}  // namespace fsdp::test
