#pragma once
/// \file
/// Tensors that train although they are in no group.

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace fsdp::runtime {

/// Finds leaves of autograd that train and are in no group, so that each rank trains its own.
///
/// Note [Leaves in no group]. An input may require a gradient as well, e.g. an adversarial example, or a point at which
/// a differential equation is to hold. What trains is kept from one step to the next, and has another value then. So a
/// leaf trains if its value changes between two steps in which backwards reach it. A step ends when rows of a group are
/// written; where all sharded parameters are frozen, so that nothing writes them, it ends after kBackwardsOfAStep
/// backwards. The value is its norm, which is taken once a step, from the second step on and kLooks times at most. So a
/// leaf that a backward reaches for the first time, as a new batch does, costs an entry in a table, and later a
/// look-up.
///
/// Thread safety: all of it.
class UnregisteredLeaves {
 public:
  static constexpr int kBackwardsOfAStep = 100;

  /// There is a group over several ranks: until then nothing is looked for.
  void begin() { looks_ = true; }
  bool looks() const { return looks_; }
  /// Rows of a group are about to be written.
  void note_write() { writes_.fetch_add(1, std::memory_order_relaxed); }
  /// The user said that this leaf is each rank's own.
  void leave_out(const at::Tensor& leaf);
  bool is_left_out(const at::Tensor& leaf);
  /// The user sums this gradient over the ranks: its leaf is not looked for any more.
  void leave_out_leaf_of(const at::Tensor& gradient);
  /// A backward is about to add to the gradients of `leaves`. Returns those of them that train, each once.
  std::vector<at::Tensor> find_trained(std::span<const at::Tensor> leaves);

 private:
  static constexpr int kLooks = 5;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Leaf {
    WeakTensor tensor;
    uint64_t writes = 0;  // when the step began
    int backwards = 0;    // that reached it in this step
    int looks_left = kLooks;
    bool is_left_out = false;         // the user said so
    std::optional<double> norm = {};  // when it was looked at last
  };
  Leaf& entry_of(const at::Tensor& leaf);
  bool trains(Leaf& leaf, const at::Tensor& tensor);

  std::atomic<bool> looks_ = false;
  std::atomic<uint64_t> writes_ = 0;
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Leaf> leaves_;
  size_t tidy_at_ = 64;  // how many entries there are when those of tensors that are gone are erased
};

/// What the user is told of tensors that train and are in no group.
std::string warning_of(const std::vector<at::Tensor>& trained);

}  // namespace fsdp::runtime
