#pragma once
/// \file
/// Models that are built without memory, since a whole model may not fit into a rank's memory.

#include <torch/nn/module.h>

#include <memory>
#include <utility>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// The guard behind deferred_init and meta_init; call those instead. Affects the current thread.
class [[nodiscard]] DeferredStretch {
 public:
  /// `forgets`: whether computations are discarded (meta_init) instead of deferred (deferred_init).
  explicit DeferredStretch(bool forgets);
  ~DeferredStretch();
  DeferredStretch(const DeferredStretch&) = delete;
  DeferredStretch& operator=(const DeferredStretch&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Runs `build` and returns its result. Tensors that `build` creates are on the meta device and have no memory. Their
/// computations are recorded, and `fully_shard` replays them one parameter at a time, of which each rank keeps its
/// rows. The values have the same bits as without deferred_init, for any number of ranks, and lie on the device that
/// `build` asked for. Buffers and ignored parameters are replayed in `fully_shard` too, and stay whole.
///
/// Random numbers are drawn both now, so that generators advance as usual, and in `fully_shard`; each time a rank needs
/// memory for one tensor, at most the largest. No other thread may draw from the same generators in either call.
/// `build` may run any code: an operation that needs a value, such as `item()`, gets it. Tensors that a module holds
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

/// Like deferred_init, but without values: computations are discarded and no random numbers are drawn, as under
/// Python's `torch.device("meta")`. After `fully_shard` parameters and buffers are still on the meta device; see to.h.
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

/// Computes the deferred values of a module's parameters and buffers, whole, without sharding them. The tensor objects
/// stay the same. Sharded tensors and other tensors on the meta device are left alone. Not collective.
///
///     fsdp::materialize(*gpt);  // in a program without ranks
void materialize(torch::nn::Module& module);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
