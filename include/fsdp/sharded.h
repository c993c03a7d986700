#pragma once
/// \file
/// The callable handle of a sharded module.

#include <fsdp/cast.h>
#include <fsdp/group.h>
#include <fsdp/scopes.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace torch::serialize {
class OutputArchive;
class InputArchive;
}  // namespace torch::serialize

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Handle that is called like the module. `Holder` is a module holder, a shared_ptr, a reference or a TorchScript
/// module. The handle is not a module: it cannot be registered as a submodule or written to an archive. It is cheap to
/// copy.
///
///     fsdp::Sharded<GPT> model = fsdp::fully_shard(gpt);
///     auto logits = model(ids);
template <class Holder>
class Sharded : public Group {
 public:
  /// Constructor for fully_shard; `group` is the module's group.
  Sharded(Holder module, Group group) : Group(std::move(group)), module_(static_cast<Holder>(module)) {}

  /// Runs the module's forward in a forward scope. Arguments and results may be of any type; floating-point tensors in
  /// them are cast as the MixedPrecisionPolicy of the module's own group says (see fsdp::for_each_tensor). Collective.
  /// Throws what ForwardScope and the operators throw.
  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    ForwardScope scope(*this);
    const auto forward = [this](auto&&... cast) -> decltype(raw().forward(std::forward<decltype(cast)>(cast)...)) {
      return raw().forward(std::forward<decltype(cast)>(cast)...);
    };
    return call_with_casts(*this, forward, std::forward<Args>(args)...);
  }
  /// Does the same as `model(...)`.
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    return (*this)(std::forward<Args>(args)...);
  }

  /// Accesses the module: `model->parameters()`, `model->train()`. `model->forward(x)` opens no scope, so put a
  /// ForwardScope around it.
  auto operator->() { return &raw(); }
  /// Accesses the module; a const handle does not make the module const.
  auto operator->() const { return &raw(); }
  /// Returns the module that was passed to fully_shard.
  const std::remove_reference_t<Holder>& module() const { return module_; }

 private:
  decltype(auto) raw() const {
    auto& module = const_cast<std::remove_cvref_t<Holder>&>(module_);  // a const handle does not make the module const
    if constexpr (std::is_reference_v<Holder> || std::is_same_v<Holder, torch::jit::Module>)
      return module;
    else
      return *module;
  }

  Holder module_;
};

/// Deleted, because a handle cannot be saved. Save the module instead.
template <class Holder>
torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive&, const Sharded<Holder>&) = delete;
/// Deleted, because a handle cannot be loaded. Load into the module instead.
template <class Holder>
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive&, Sharded<Holder>&) = delete;

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
