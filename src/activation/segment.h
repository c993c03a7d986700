#pragma once
/// \file
/// A checkpointed region: one call of activation_checkpoint.

#include <ATen/core/Tensor.h>
#include <fsdp/activation_checkpoint.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "activation/forward_state.h"
#include "activation/kept_results.h"
#include "activation/kept_tensor.h"
#include "activation/tensor_version.h"
#include "comm/core/mutex.h"
#include "memory/byte_account.h"
#include "parallel/sequence_scope.h"
#include "parallel/token_slices.h"
#include "runtime/saved_tensors.h"

namespace fsdp::activation {

/// One call of activation_checkpoint. The hooks that replace saved tensors in the autograd graph own it.
///
/// Note [Computing again]. Forward runs as usual and autograd records it, but saved-tensor hooks drop each tensor and
/// remember only its index. When backward asks for the first of them, the region runs again, recorded into a graph that
/// is never run backward; the tensors that this graph saves, in the same order, are those that backward needs. Backward
/// itself runs through the graph of forward. So results require gradients as usual, a backward that stops at some
/// inputs (`torch::autograd::grad`) works, and a group knows from the start which gradients to expect. Reentrant
/// checkpointing, a backward nested in backward, which is what custom Functions in LibTorch allow, has none of these
/// properties and does not work for regions whose inputs require no gradient.
///
/// The second run ends with the last tensor that is still needed, by throwing an internal exception, so that later
/// operators, such as the block's last product, are not computed. Recomputed tensors are freed as backward releases its
/// nodes, at the latest when its graph task ends.
///
/// A nested region keeps nothing: its inputs are tensors that autograd saves, so the outer region's hooks have them,
/// and asking for them first recomputes the outer region. Nested regions that this run opens are not used.
///
/// Inputs in host memory are copied back one region ahead: while a region is recomputed, the inputs of the region that
/// ran before it in forward, which backward reaches next, are copied.
///
/// A region may run a backward inside with `create_graph`. What autograd saves for that backward is kept normally, in
/// both runs, because the exception that ends a run must not pass through the autograd engine, whose count of nested
/// backwards on its threads would then stay too high.
///
/// Thread-safe. On an accelerator the nodes of one backward run on several threads; the first thread that needs a
/// tensor recomputes, the others wait. Nested regions are locked from the inside out, and the region ahead only if no
/// thread is computing it.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  Segment(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
          std::unique_ptr<detail::Recomputation> again);

  /// Hooks for one tensor that forward would save.
  runtime::SavedTensorScope::Hooks leave_out();
  KeptResults& results() { return results_; }
  /// To be called after the region has run. Throws UsageError if the region wrote to an input.
  void finish();

 private:
  class LeftOut;
  class Recomputed;
  struct Complete {};  // the exception that ends a run
  /// A tensor that was dropped.
  struct Slot {
    c10::DimVector sizes;
    c10::ScalarType dtype;
    c10::Device device;
    bool is_wanted = true;
    at::Tensor value = {};
  };

  size_t add(const at::Tensor& tensor);
  at::Tensor value(size_t index);
  void forget(size_t index);
  void charge();
  void take(const at::Tensor& tensor);

  void compute(int task);
  void run_again(int task);
  bool is_complete();
  void clear();
  void bring_ahead();
  void drop_brought();
  /// Frees values that the graph task did not use.
  void end(int task);
  void require_unwritten(const char* when) const;
  /// Throws UsageError, because a tensor that autograd saved in the region was written in place.
  [[noreturn]] void refuse_written(size_t index);
  /// Throws UsageError, because the region's second run differs from the first.
  [[noreturn]] void refuse_other_run(const std::string& found) const;

  const std::unique_ptr<detail::Recomputation> again_;
  const std::vector<at::Tensor> buffers_;
  const std::optional<RandomStates> random_;
  const AutocastState autocast_;
  const std::shared_ptr<parallel::SequenceScope> sequence_;  // the scope in which the region ran; null: none
  const parallel::TokenSlices::Place slice_;                 // the token slice of the run
  std::vector<KeptTensor> inputs_;
  struct Parameter {
    std::string name;
    TensorVersion version;  // version after the region had run
  };
  std::vector<Parameter> parameters_;
  KeptResults results_;
  std::weak_ptr<Segment> ahead_;  // in backward: the next region whose inputs are in host memory

  std::recursive_mutex computing_;  // held by the thread that recomputes
  bool is_computing_ = false;
  Mutex mutex_;
  std::vector<Slot> slots_ FSDP_GUARDED_BY(mutex_);
  size_t next_ FSDP_GUARDED_BY(mutex_) = 0;  // index of the run's next saved tensor
  int task_ FSDP_GUARDED_BY(mutex_) = -1;    // the graph task for which values were computed

  std::shared_ptr<memory::ByteAccount> account_;      // of the first group that the region reads
  std::shared_ptr<memory::ChargesOnce> kept_inputs_;  // of that group's rank
  std::vector<std::shared_ptr<const memory::Charge>> input_charges_;
  memory::Charge host_charge_, result_charge_;
};

}  // namespace fsdp::activation
