#pragma once
/// \file
/// Models that are built without memory, because whole they may be larger than what a rank has.

#include <torch/nn/module.h>

#include <memory>
#include <utility>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// What deferred_init and meta_init have open: call these. For one thread.
class [[nodiscard]] DeferredStretch {
 public:
  /// `forgets`: whether what is computed meanwhile is forgotten instead of put off.
  explicit DeferredStretch(bool forgets);
  ~DeferredStretch();
  DeferredStretch(const DeferredStretch&) = delete;
  DeferredStretch& operator=(const DeferredStretch&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Runs `build` and returns what it returns. Tensors that it makes are on the meta device and have no memory; what it
/// computes is put off until `fully_shard` takes their rows, then done one parameter after the other, of which each
/// rank keeps its rows: the same bits as if `build` had run without this, with any number of ranks. Buffers and ignored
/// parameters get their values in `fully_shard` too, whole. Values come to lie on the device that `build` asked for.
///
/// Random numbers are drawn twice, now and in `fully_shard`, so generators go on as without this; a rank holds the
/// largest tensor for as long. Meanwhile, and in `fully_shard`, no other thread may draw from the same generators. Any
/// code may run in `build`: what asks for a value, as `item()`, gets it. But tensors that a module keeps without
/// registering them as parameters or buffers stay on the meta device, and so does what another thread makes of them.
/// What is written to parameters and buffers between this and `fully_shard` or `materialize` is an error there.
///
/// Not collective; each rank builds alike, from one seed (Mismatch of `fully_shard` otherwise).
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

/// The same without values: what `build` computes is forgotten, and random numbers are not drawn, as under Python's
/// `torch.device("meta")`. After `fully_shard` parameters and buffers are still on the meta device; see to.h.
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

/// Gives parameters and buffers of a module that deferred_init built their values, whole, without sharding them. The
/// same tensors as before; those that are sharded, or on the meta device for another reason, stay as they are. Not
/// collective.
///
///     fsdp::materialize(*gpt);  // in a program without ranks
void materialize(torch::nn::Module& module);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
