#pragma once
/// \file
/// Results of operators that a checkpointed region keeps in forward, so that its second run does not compute them
/// again.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::activation {

/// The kept results of one region. They are stored and returned below autograd, so autograd records the same graph
/// whether an operator ran or its kept result was returned.
///
/// Note [Writes to kept results]. A region may itself write to a kept result, for example when a linear layer adds its
/// bias to a product. The kept memory already contains such writes, so the second run skips the operators that write to
/// a kept result. This is correct only if nothing in the region reads the result before the last write. A result that
/// is written after a read, or by an operator that does more than write one tensor, is therefore not kept. Operators
/// that use the memory are recognised by the storage of their tensors, because version counters do not show writes
/// through `_unsafe_view`. Writes after the region has run are recognised by the versions of the result and of its
/// `_unsafe_view`s; the result is then computed again.
class KeptResults {
 public:
  using Keeps = std::function<bool(std::string_view operator_name)>;

  /// `keeps` returns true for operators whose results are kept. If it is empty, nothing is kept.
  explicit KeptResults(Keeps keeps) : keeps_(std::move(keeps)) {}

  enum class Pass : uint8_t { kForward, kAgain };
  /// While a Scope exists, operators on this thread store their results in `results` (kForward) or return kept ones
  /// from there (kAgain). Only the innermost scope applies, even if it keeps nothing. Operators of a backward that the
  /// region runs do neither, as with runtime::SavedTensorScope.
  class Scope {
   public:
    Scope(KeptResults& results, Pass pass);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class KeptResults;
    /// Returns the innermost scope of this thread, or null if it was opened outside the current graph task.
    static Scope* innermost();
    /// Returns the enclosing scope, or null if it was opened in another graph task.
    Scope* outer() const { return outer_ != nullptr && outer_->task_ == task_ ? outer_ : nullptr; }
    /// Returns true if the tensor lies in the memory of a kept result that this scope has returned.
    bool gave(const at::Tensor& tensor) const;
    /// Returns the kept results of the region's next call of a kept operator, which must be `op`. Returns nothing if
    /// they were not kept or have been written since forward.
    std::optional<std::vector<c10::IValue>> next_results(const c10::OperatorHandle& op);

    KeptResults& results_;
    const Pass pass_;
    const int task_;
    size_t next_ = 0;
    std::vector<c10::IValue> given_ = {};
    Scope* const outer_;
    const bool was_included_;
  };

  /// Returns true if this thread is running a checkpointed region, for the first time or again.
  static bool is_scope_open() { return Scope::innermost() != nullptr; }
  /// Returns the number of bytes of the kept results.
  int64_t bytes() const;

 private:
  struct Result {
    c10::IValue value;     // a tensor, possibly undefined, or a number
    uint32_t version = 0;  // version after forward; if it has changed, the tensor was written
  };
  /// One call of an operator whose results `keeps_` selects.
  struct Call {
    c10::OperatorHandle op;
    std::vector<Result> results = {};  // empty if they are not kept
    std::vector<Result> views = {};    // `_unsafe_view`s of the results, which have version counters of their own
    bool was_read = false;
    bool has(const at::Tensor& tensor) const;
    bool is_unwritten() const;
    void forget() { results.clear(), views.clear(); }
  };
  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool keeps(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void keep(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// Notes that `op`, an operator in forward, is about to read or write its arguments. `writes_one` is true if writing
  /// one tensor is all that it does.
  void note_uses(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool writes_one);
  void note_write(const at::Tensor& written, bool can_be_left_out);
  void note_read(const at::Tensor& read);
  void note_view(const at::Tensor& view);
  /// Records the versions of the results after forward, so that later writes are noticed.
  void record_versions();

  const Keeps keeps_;
  std::vector<Call> calls_;  // in program order
};

}  // namespace fsdp::activation
