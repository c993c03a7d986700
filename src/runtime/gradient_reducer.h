#pragma once
/// \file
/// From a group's whole gradients to the gradients of this rank's rows.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "memory/flat_buffer.h"

namespace fsdp::runtime {

class ParamGroup;
class ParamSlot;

enum class ReductionState : uint8_t { kIdle, kReducing };

/// Collects the whole gradients of one group and reduces them: the sum over the ranks in rank order, then one
/// multiplication by 1/divisor. A parameter that some rank used gets a gradient on every rank, one that no rank used
/// keeps `.grad` as it was: one presence bit per parameter travels with the reduction. The gradients handed out are
/// parts of one buffer, which lies as the flat shard does and is zero between them: optimizers walk through both at
/// once.
class GradientReducer {
 public:
  explicit GradientReducer(ParamGroup& group) : group_(group) {}

  /// A backward begins, which will give gradients to the slots that `expects` picks. Where it `may_recompute`, others
  /// that were read unrecorded get theirs from backwards inside it.
  void expect(const std::function<bool(const ParamSlot&)>& expects, bool may_recompute);
  /// It has ended.
  void expect_nothing();
  bool expects_any() const { return expected_ > 0; }
  /// Whether each parameter that expects a gradient in the open backward has it.
  bool is_complete() const { return missing_ == 0 && missing_from_inside_ == 0; }
  /// Whether nothing else is missing but gradients of what may be computed again.
  bool awaits_recomputation_only() const { return missing_ == 0 && missing_from_inside_ > 0; }

  /// Adds a whole gradient (dense or sparse) to its slot; `from_inside`: of a backward inside the open one.
  void add(size_t slot, at::Tensor gradient, bool from_inside);
  bool has_gradients() const { return waiting_ > 0; }

  /// Starts the reduction of what has arrived; kIdle -> kReducing. Collective.
  void start();
  /// Waits for it and adds the result to the rows' gradients; kReducing -> kIdle.
  void finish();
  /// Forgets everything; -> kIdle.
  void reset();

  /// The divisor of the sum; unset: the number of ranks.
  std::optional<double> divide_factor;

 private:
  struct InFlight {
    size_t flat;
    std::vector<memory::Charge> charges;  // of the whole gradients
    std::shared_ptr<memory::FlatBuffer> output;
    std::shared_ptr<Work> work;
  };

  std::vector<Piece> take_pieces(size_t flat, std::vector<memory::Charge>& charges);
  InFlight start_flat(size_t flat);
  std::vector<InFlight> take_in_flight();
  void hand_out(const InFlight& reduced);
  void hand_out_slot(size_t slot, const InFlight& reduced);

  ParamGroup& group_;  // the owner
  ReductionState state_ = ReductionState::kIdle;
  uint64_t reduction_number_ = 0;  // of the last one that was started
  // Slots that expect a gradient of the open backward, that still miss it or one from inside, and whose gradient waits
  // for a reduction.
  size_t expected_ = 0, missing_ = 0, missing_from_inside_ = 0, waiting_ = 0;
  std::vector<InFlight> in_flight_;
};

}  // namespace fsdp::runtime
