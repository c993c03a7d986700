#pragma once
/// \file
/// A part of forward that is computed again.

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

/// One call of activation_checkpoint, owned by what the graph keeps in place of its tensors.
///
/// Note [Computing again]. Forward runs as ever and autograd records it, but the tensors that it would keep are given
/// to hooks that remember their order only. The first of them that backward asks for makes the part run once more, with
/// autograd recording into a graph that nobody runs; the tensors which that one would keep, in the same order, are the
/// ones that backward wants. So backward itself runs through the graph of forward: results require gradients as they
/// would, a backward that stops at some inputs (`torch::autograd::grad`) is right, and a group knows from the beginning
/// which gradients to expect. With a backward nested in backward (reentrant checkpointing, in LibTorch's reach of
/// custom Functions) none of that holds, and neither would parts without an input that requires gradients work.
///
/// The run ends with the last tensor that is still wanted, by an exception of its own: what would follow, e.g. the
/// block's last product, is not computed. What was computed goes as backward gives its nodes up, and at the end of its
/// graph task at the latest.
///
/// A part inside another one keeps nothing: its inputs are tensors that autograd would keep, so the outer part's hooks
/// have them, and asking for them computes the outer part again first. What that run opens anew is not used.
///
/// Inputs in host memory come back one part ahead: a part that is computed brings those of the part that ran before it
/// in forward, which backward comes to next, beside its own run.
///
/// A part may differentiate inside, with `create_graph`. What autograd keeps of that backward is kept as ever, in
/// forward and when the part runs again: engines have threads of their own, and the exception that ends a run must not
/// pass through one, which would count itself a level deeper from then on.
///
/// Thread safety: all of it. On an accelerator nodes of one backward run on several threads; the first one that asks
/// computes, others wait. Parts lock from the inside out, and the one ahead only if nobody computes it.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  Segment(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
          std::unique_ptr<detail::Recomputation> again);

  /// Hooks of a tensor that forward would keep.
  runtime::SavedTensorScope::Hooks leave_out();
  KeptResults& results() { return results_; }
  /// The part has run. Throws UsageError if it wrote to an input.
  void finish();

 private:
  class LeftOut;
  class Recomputed;
  struct Complete {};  // what a run ends with
  /// A tensor that is left out.
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
  /// Values that the graph task did not use go.
  void end(int task);
  void require_unwritten(const char* when) const;
  /// Throws UsageError: what autograd keeps of the part was written in place.
  [[noreturn]] void refuse_written(size_t index);
  /// Throws UsageError: the part does something else when it runs again.
  [[noreturn]] void refuse_other_run(const std::string& found) const;

  const std::unique_ptr<detail::Recomputation> again_;
  const std::vector<at::Tensor> buffers_;
  const std::optional<RandomStates> random_;
  const AutocastState autocast_;
  const std::shared_ptr<parallel::SequenceScope> sequence_;  // in which attention is over several ranks, or null
  const parallel::TokenSlices::Place slice_;                 // at which the part ran
  std::vector<KeptTensor> inputs_;
  struct Parameter {
    std::string name;
    TensorVersion version;  // when the part had run
  };
  std::vector<Parameter> parameters_;
  KeptResults results_;
  std::weak_ptr<Segment> ahead_;  // in backward: the one before this whose inputs are in host memory

  std::recursive_mutex computing_;  // held by the thread that computes
  bool is_computing_ = false;
  Mutex mutex_;
  std::vector<Slot> slots_ FSDP_GUARDED_BY(mutex_);
  size_t next_ FSDP_GUARDED_BY(mutex_) = 0;  // of the run's tensors
  int task_ FSDP_GUARDED_BY(mutex_) = -1;    // the graph task that values were computed for

  std::shared_ptr<memory::ByteAccount> account_;      // of the first group that the part reads
  std::shared_ptr<memory::ChargesOnce> kept_inputs_;  // of its rank
  std::vector<std::shared_ptr<const memory::Charge>> input_charges_;
  memory::Charge host_charge_, result_charge_;
};

}  // namespace fsdp::activation
