#pragma once
/// \file
/// Results of operators that are kept from forward to backward, so that computing a part again need not compute them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::activation {

/// Below autograd, so what autograd records is the same with a kept result.
///
/// Note [Writes to kept results]. What the part itself writes to a result, as a linear layer adds its bias to a
/// product, is in the memory that is kept; so when the part runs again, and is given that memory, such operators are
/// left out. That is right as long as nobody in the part reads the result before the last of them; a result that is
/// written after it was read, or by an operator that does more than write one tensor, is not kept. Which operators use
/// the memory is seen by the memory, since versions do not tell of writes through `_unsafe_view`. Writes that come
/// after the part are seen by versions, also those of such views; then the result is computed again.
class KeptResults {
 public:
  using Keeps = std::function<bool(std::string_view operator_name)>;

  /// Empty: nothing is kept.
  explicit KeptResults(Keeps keeps) : keeps_(std::move(keeps)) {}

  enum class Pass : uint8_t { kForward, kAgain };
  /// While it lives, this thread's operators leave their results here or get them from here. Innermost counts, also one
  /// that keeps nothing. Operators of a backward inside the part do neither, as with runtime::SavedTensorScope.
  class Scope {
   public:
    Scope(KeptResults& results, Pass pass);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class KeptResults;
    /// None if it was opened outside of this graph task.
    static Scope* innermost();
    /// The one around it, on the same terms.
    Scope* outer() const { return outer_ != nullptr && outer_->task_ == task_ ? outer_ : nullptr; }
    /// Whether the part has got this memory as a result that was kept.
    bool gave(const at::Tensor& tensor) const;
    /// Of the part's next call, if they are as they were when it had run.
    std::optional<std::vector<c10::IValue>> next_results(const c10::OperatorHandle& op);

    KeptResults& results_;
    const Pass pass_;
    const int task_;
    size_t next_ = 0;
    std::vector<c10::IValue> given_ = {};
    Scope* const outer_;
    const bool was_included_;
  };

  /// Whether this thread is inside a part of forward, the first time or again.
  static bool is_scope_open() { return Scope::innermost() != nullptr; }
  int64_t bytes() const;

 private:
  struct Result {
    c10::IValue value;     // a tensor, perhaps an undefined one, or a number
    uint32_t version = 0;  // other than that: somebody wrote to it after the part
  };
  /// A call of an operator, in the order of calls.
  struct Call {
    c10::OperatorHandle op;
    std::vector<Result> results = {};  // none: not kept
    std::vector<Result> views = {};    // of results, with versions of their own
    bool was_read = false;
    bool has(const at::Tensor& tensor) const;
    bool is_unwritten() const;
    void forget() { results.clear(), views.clear(); }
  };
  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool keeps(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void keep(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// An operator of forward is about to use its arguments.
  void note_uses(const c10::OperatorHandle& op, const torch::jit::Stack& stack, bool writes_one);
  void note_write(const at::Tensor& written, bool can_be_left_out);
  void note_read(const at::Tensor& read);
  void note_view(const at::Tensor& view);
  /// The part has run: what is written from now on is not in the part.
  void record_versions();

  const Keeps keeps_;
  std::vector<Call> calls_;
};

}  // namespace fsdp::activation
