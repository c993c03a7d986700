#pragma once
/// \file
/// Results of operators that are kept from forward to backward, so that computing a part again need not compute them.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string_view>
#include <vector>

namespace fsdp::activation {

/// Below autograd, so what autograd records is the same with a kept result.
class KeptResults {
 public:
  using Keeps = std::function<bool(std::string_view operator_name)>;

  /// Empty: nothing is kept.
  explicit KeptResults(Keeps keeps) : keeps_(std::move(keeps)) {}

  enum class Pass : uint8_t { kForward, kAgain };
  /// While it lives, this thread's operators leave their results here or get them from here. Innermost counts, also one
  /// that keeps nothing.
  class Scope {
   public:
    Scope(KeptResults& results, Pass pass);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class KeptResults;
    KeptResults& results_;
    const Pass pass_;
    size_t next_ = 0;
    Scope* const outer_;
    const bool was_included_;
  };

  /// Whether this thread is inside a part of forward, the first time or again.
  static bool is_scope_open();
  int64_t bytes() const;

 private:
  struct Result {
    at::Tensor tensor;
    uint32_t version;  // other than that: somebody wrote to it
  };
  /// A call of an operator, in the order of calls.
  struct Call {
    c10::OperatorHandle op;
    std::vector<Result> results;  // none: not kept
  };
  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  bool keeps(const c10::OperatorHandle& op) const;
  void keep(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// An operator of forward is about to write: what it writes to is not kept.
  void forget_written(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void forget(const at::Tensor& written);
  /// Whether they are as they were when they were kept; then they are on the stack in place of the arguments.
  static bool give(const Call& call, torch::jit::Stack& stack);

  const Keeps keeps_;
  std::vector<Call> calls_;
};

}  // namespace fsdp::activation
