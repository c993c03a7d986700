#pragma once
/// \file
/// What this thread's autograd does with tensors that it keeps for backward.

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>

namespace fsdp::runtime {

/// While it lives, a tensor that autograd keeps on this thread is given to hooks that `make` makes, one for each, and
/// asked back from them in backward. Null: it is kept as ever. Of several scopes the innermost counts. Guards close
/// last in, first out.
///
/// It counts in the graph task that it was opened in, -1 outside of all, and not in one that begins inside it (with
/// `create_graph`), which on an accelerator may run on another thread.
///
/// Note [Hooks of kept tensors]. LibTorch asks its engine for such hooks (Engine::get_default_saved_variable_hooks), of
/// which only Python's has some. So the first scope of a process puts an engine before the one that is there, which
/// answers this question and hands everything else on. Python's hooks are asked for where no scope is open.
class [[nodiscard]] SavedTensorScope {
 public:
  using Hooks = std::unique_ptr<torch::autograd::SavedVariableHooks>;

  explicit SavedTensorScope(std::function<Hooks()> make);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  bool counts() const;
  Hooks make() const { return make_(); }

 private:
  const std::function<Hooks()> make_;
  const int task_;
  const SavedTensorScope* const outer_;
};

}  // namespace fsdp::runtime
