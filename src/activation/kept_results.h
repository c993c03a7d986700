#pragma once
/// \file
/// Results of operators that a checkpointed region keeps instead of recomputing them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::activation {

/// Intercepts operators below autograd, so autograd records the same graph with a kept result.
///
/// Note [Writes to kept results]. A region may itself write to a kept result, as a linear layer adds its bias to a
/// product. The kept memory already contains such writes, so when the region runs again and receives that memory, the
/// writing operators are skipped. This is right only if nothing in the region reads the result before the last write; a
/// result that is written after a read, or by an operator that does more than write one tensor, is therefore not kept.
/// Operators that use the memory are recognised by their tensors' storage, since version counters do not show writes
/// through `_unsafe_view`. Writes after the region are recognised by the versions of the result and of such views; then
/// the result is recomputed.
class KeptResults {
 public:
  using Keeps = std::function<bool(std::string_view operator_name)>;

  /// If `keeps` is empty, nothing is kept.
  explicit KeptResults(Keeps keeps) : keeps_(std::move(keeps)) {}

  enum class Pass : uint8_t { kForward, kAgain };
  /// While it lives, this thread's operators store their results here (kForward) or receive them (kAgain). Only the
  /// innermost scope applies, even if it keeps nothing. Operators of a backward inside the region do neither, as with
  /// runtime::SavedTensorScope.
  class Scope {
   public:
    Scope(KeptResults& results, Pass pass);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class KeptResults;
    /// Null if the innermost scope was opened outside the current graph task.
    static Scope* innermost();
    /// The enclosing scope, if it was opened in the same graph task.
    Scope* outer() const { return outer_ != nullptr && outer_->task_ == task_ ? outer_ : nullptr; }
    /// Whether the region has received this memory as a kept result.
    bool gave(const at::Tensor& tensor) const;
    /// The kept results of the region's next call, if they are unchanged since the region ran.
    std::optional<std::vector<c10::IValue>> next_results(const c10::OperatorHandle& op);

    KeptResults& results_;
    const Pass pass_;
    const int task_;
    size_t next_ = 0;
    std::vector<c10::IValue> given_ = {};
    Scope* const outer_;
    const bool was_included_;
  };

  /// Whether this thread is running a checkpointed region, for the first time or again.
  static bool is_scope_open() { return Scope::innermost() != nullptr; }
  int64_t bytes() const;

 private:
  struct Result {
    c10::IValue value;     // a tensor, possibly undefined, or a number
    uint32_t version = 0;  // after the region; a later one means a write
  };
  /// One call of an operator, in program order.
  struct Call {
    c10::OperatorHandle op;
    std::vector<Result> results = {};  // empty: not kept
    std::vector<Result> views = {};    // views of results, with version counters of their own
    bool was_read = false;
    bool has(const at::Tensor& tensor) const;
    bool is_unwritten() const;
    void forget() { results.clear(), views.clear(); }
  };
  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool keeps(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void keep(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// Called before an operator of forward uses its arguments.
  void note_uses(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool writes_one);
  void note_write(const at::Tensor& written, bool can_be_left_out);
  void note_read(const at::Tensor& read);
  void note_view(const at::Tensor& view);
  /// Called when the region has run: later writes are not the region's.
  void record_versions();

  const Keeps keeps_;
  std::vector<Call> calls_;
};

}  // namespace fsdp::activation
