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
/// remember only its index. When backward needs the first of these tensors, the region runs again. Autograd records
/// this second run into a graph that never runs backward; it saves the same tensors in the same order, and the hooks
/// take the tensors from there. Backward itself runs through the graph of forward. Results therefore require gradients
/// as usual, `torch::autograd::grad` with some inputs works, and a param group knows from the start which gradients to
/// expect. Reentrant checkpointing, where the backward of a custom Function runs another backward, has none of these
/// properties, and does not work for regions whose inputs require no gradient.
///
/// The second run ends when it has the last tensor that is still needed. It then throws an internal exception, so that
/// later operators, such as the last product of a block, are not computed. Backward frees recomputed tensors when it
/// releases their nodes, at the latest when its graph task ends.
///
/// A nested region does not keep its inputs. Autograd saves them, so the outer region's hooks drop them, and the second
/// run of the nested region first makes the outer region run again. The regions that this run of the outer region opens
/// are not used.
///
/// Inputs in host memory are copied back one region ahead: while one region runs again, the inputs of the region that
/// ran before it in forward are copied, because backward reaches that region next.
///
/// A region may itself run a backward with `create_graph`. In neither run do the hooks drop the tensors that autograd
/// saves during that backward. The exception that ends a second run must not pass through the autograd engine, because
/// the engine's count of nested backwards on its threads would then stay too high.
///
/// Thread-safe. On an accelerator several threads run the nodes of one backward. The first thread that needs a tensor
/// runs the region again, and the others wait. A thread locks the inner region before the outer one, and it locks the
/// region whose inputs are copied ahead only if no thread is running that region again.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  Segment(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
          std::unique_ptr<detail::Recomputation> again);

  /// Returns the hooks for one tensor that autograd saves in forward.
  runtime::SavedTensorScope::Hooks leave_out();
  KeptResults& results() { return results_; }
  /// Call this function after the region has run. Throws UsageError if the region wrote to an input.
  void finish();

 private:
  class LeftOut;
  class Recomputed;
  struct Complete {};  // the exception that ends the second run
  /// A tensor that the hooks dropped in forward.
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
  /// Frees the recomputed tensors that the graph task did not use.
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
  const std::shared_ptr<parallel::SequenceScope> sequence_;  // scope in which forward ran; null if there was none
  const parallel::TokenSlices::Place slice_;                 // slice of tokens that forward computed
  std::vector<KeptTensor> inputs_;
  struct Parameter {
    std::string name;
    TensorVersion version;  // version after forward
  };
  std::vector<Parameter> parameters_;
  KeptResults results_;
  std::weak_ptr<Segment> ahead_;  // region with inputs in host memory that backward reaches next

  std::recursive_mutex computing_;  // held by the thread that runs the region again
  bool is_computing_ = false;
  Mutex mutex_;
  std::vector<Slot> slots_ FSDP_GUARDED_BY(mutex_);
  size_t next_ FSDP_GUARDED_BY(mutex_) = 0;  // index of the next tensor that autograd saves in the second run
  int task_ FSDP_GUARDED_BY(mutex_) = -1;    // graph task for which the region ran again

  std::shared_ptr<memory::ByteAccount> account_;      // byte account of the first group whose parameter was saved
  std::shared_ptr<memory::ChargesOnce> kept_inputs_;  // RankState::kept_inputs of that group
  std::vector<std::shared_ptr<const memory::Charge>> input_charges_;
  memory::Charge host_charge_, result_charge_;
};

}  // namespace fsdp::activation
