#pragma once
/// \file
/// Construction of models without memory, for models that do not fit into a rank's memory.

#include <torch/nn/module.h>

#include <memory>
#include <utility>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// Guard that implements deferred_init and meta_init on the current thread. Call those functions instead.
class [[nodiscard]] DeferredStretch {
 public:
  /// Begins to intercept computations of the thread. `forgets` is true if they are discarded (meta_init) and false if
  /// they are deferred (deferred_init).
  explicit DeferredStretch(bool forgets);
  DeferredStretch(const DeferredStretch&) = delete;
  DeferredStretch& operator=(const DeferredStretch&) = delete;

 private:
  const std::shared_ptr<void> recording_;
};

/// Runs `build` and returns its result. Tensors that `build` creates are on the meta device and have no memory.
/// deferred_init records their computations; `fully_shard` replays them for one parameter at a time, and each rank
/// keeps its rows of the result. The values have the same bits as without deferred_init, for any number of ranks, and
/// lie on the device that `build` asked for. Buffers and ignored parameters are replayed in `fully_shard` too, and stay
/// whole.
///
/// Random numbers are drawn twice: in this call, so that generators advance as usual, and in `fully_shard`. Both calls
/// need memory for one tensor at a time. No other thread may draw from the same generators during either call. `build`
/// may run any code: an operation that needs a value, such as `item()`, gets the value. Tensors that a module holds
/// without registering them stay on the meta device, as do tensors that other threads compute. Parameters and buffers
/// must not be written between this call and `fully_shard` or `materialize`, which throw an error otherwise.
///
/// Not collective, but every rank must build the same model from the same seed; otherwise `fully_shard` throws
/// Mismatch.
///
///     torch::manual_seed(1);
///     auto gpt = fsdp::deferred_init([&] { return GPT(config); });
///     for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
///     auto model = fsdp::fully_shard(gpt);
template <class Build>
auto deferred_init(Build&& build) {
  const DeferredStretch stretch(/*forgets=*/false);
  return std::forward<Build>(build)();
}

/// Runs `build` and returns its result as deferred_init does, but discards computations and draws no random numbers, as
/// Python's `torch.device("meta")` does. After `fully_shard`, parameters and buffers are still on the meta device;
/// fsdp::to_empty gives them memory.
///
///     auto gpt = fsdp::meta_init([&] { return GPT(config); });
///     auto model = fsdp::fully_shard(gpt, {.auto_wrap_policy = fsdp::module_wrap_policy<BlockImpl>()});
///     fsdp::to_empty(model, torch::kCPU);
///     fsdp::load_checkpoint("runs/a", model);
template <class Build>
auto meta_init(Build&& build) {
  const DeferredStretch stretch(/*forgets=*/true);
  return std::forward<Build>(build)();
}

/// Computes the whole deferred values of a module's parameters and buffers without sharding them. The tensor objects
/// stay the same. Sharded tensors, and tensors on the meta device without deferred values, do not change. Not
/// collective.
///
///     fsdp::materialize(*gpt);  // in a program without ranks
void materialize(torch::nn::Module& module);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
