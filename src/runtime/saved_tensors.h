#pragma once
/// \file
/// Hooks for tensors that autograd saves for backward.

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <functional>
#include <memory>

namespace fsdp::runtime {

/// While this guard lives, autograd calls `make` for each tensor that it saves on this thread. It passes the tensor to
/// the hooks that `make` returns and gets the tensor back from them in backward. If `make` returns null, autograd saves
/// the tensor as usual. If several guards live, the innermost one is used. The guard that was made last must be
/// destroyed first.
///
/// The guard is used only in the graph task in which it was made, or outside of all graph tasks if it was made there.
/// It is not used in a backward that runs inside it (with `create_graph`), because on an accelerator that backward may
/// run on another thread.
///
/// Note [Hooks of kept tensors]. LibTorch asks its autograd engine for such hooks
/// (Engine::get_default_saved_variable_hooks), and only Python's engine returns any. The first SavedTensorScope of a
/// process therefore replaces the engine by one that returns the guard's hooks and forwards all other calls to the
/// former engine. While no guard is used, it forwards this call too, so Python's hooks keep working.
struct [[nodiscard]] SavedTensorScope {
  using Hooks = std::unique_ptr<torch::autograd::SavedVariableHooks>;

  explicit SavedTensorScope(std::function<Hooks()> make_hooks);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  const std::function<Hooks()> make;
  const int task;  ///< the graph task in which the guard was made
  const SavedTensorScope* const outer;
};

}  // namespace fsdp::runtime
