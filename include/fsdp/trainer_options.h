#pragma once
/// \file
/// What a Trainer can be told, and what it tells.

#include <ATen/core/Tensor.h>
#include <fsdp/apply_activation_checkpointing.h>
#include <fsdp/checkpoint.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup training
/// \{

/// In which dtype whole parameters are gathered and computed with. Rows, their gradients and optimizer state keep the
/// parameters' own.
enum class Precision : uint8_t {
  /// That of the parameters.
  kFull,
  /// bf16; gradients are summed in fp32.
  kBFloat16,
  /// fp16, gradients too, with a GradScaler.
  kFloat16,
};

/// Which checkpoints a training leaves behind.
struct TrainerCheckpoints {
  /// Empty: none. Else one after the last step too, and SIGTERM and SIGINT end training with one.
  std::string folder = {};
  /// Steps from one to the next; 0: only after the last step.
  int64_t every = 0;
  /// How many of them stay, the newest; none: all.
  std::optional<int64_t> keep = 2;
  /// They are written while training goes on (async_save_checkpoint).
  bool async = false;
};

/// How a Trainer trains. Every field is optional; the same on every rank.
struct TrainerOptions {
  /// How many ranks Trainer::run starts on this host, if no launcher started any; 0: one, or those of the launcher.
  /// Another number than that of the ranks there are is a UsageError.
  int devices = 0;
  /// ProcessGroupOptions::backend, for Trainer::run.
  std::string backend = "auto";
  /// Seeds the generators: with this number before the model is made, so that it is the same on every rank, with
  /// another one for each rank when it is sharded, so that each drops out what it likes. Unset: they stay as they are.
  std::optional<uint64_t> seed = std::nullopt;

  /// What `shard` gives fully_shard: strategy, wrapping, offload and what else there is. Unset, its `mp_policy` follows
  /// from `precision`, its `mesh` from `mesh_shape`, and its `device` is the rank's.
  FullyShardOptions sharding = {};
  /// The sizes of Trainer::mesh. {8}: one axis, "shard"; {2, 4}: the axes "replicate" and "shard" (init_device_mesh).
  /// Empty: `sharding.mesh`.
  std::vector<int> mesh_shape = {};
  /// The names of its axes, if they are others: some of "data", "pipe", "sequence" and "tensor", in any order, "data"
  /// among them. Then rows are shared out over the ranks of "data" and "sequence" together.
  ///
  ///     options.mesh_shape = {2, 2, 2, 1};
  ///     options.mesh_dim_names = {"pipe", "data", "sequence", "tensor"};
  std::vector<std::string> mesh_dim_names = {};
  /// Of compute, where `sharding` has no `mp_policy`.
  Precision precision = Precision::kFull;
  /// Operators choose their dtype as LibTorch's autocast decides: fp32 for norms, softmax and losses, for the others
  /// fp16 with kFloat16, else bf16.
  bool autocast = false;
  /// Of kFloat16; `enabled` follows from it.
  GradScalerOptions scaler = {};
  /// Called with the module before it is sharded: activation_checkpointing_of.
  std::function<void(torch::nn::Module& module)> activation_checkpointing = {};

  /// Passes over the data.
  int64_t epochs = 1;
  /// Ends after so many optimizer steps, those of earlier runs included; none: after the epochs.
  std::optional<int64_t> steps = std::nullopt;
  /// Batches of a rank whose gradients one optimizer step takes, reduced once; at an epoch's end as many as are left.
  int64_t accumulate = 1;
  /// Gradients are scaled down to this norm over all parameters and ranks (clip_grad_norm_).
  std::optional<double> max_grad_norm = std::nullopt;

  /// Which checkpoints are written.
  TrainerCheckpoints save = {};
  /// Goes on from the newest checkpoint of this folder, or from this checkpoint. Where it is the folder of `save` it
  /// may be empty at first: then one command starts a training and goes on with it.
  std::string resume = {};
};

/// For TrainerOptions::activation_checkpointing: apply_activation_checkpointing of modules of these types.
///
///     options.activation_checkpointing = fsdp::activation_checkpointing_of<BottleneckImpl>();
template <class... Modules>
std::function<void(torch::nn::Module& module)> activation_checkpointing_of(const CheckpointOptions& options = {}) {
  return [options](torch::nn::Module& module) { apply_activation_checkpointing<Modules...>(module, options); };
}

/// How far training is. Checkpoints have it, as the state "trainer".
struct TrainingPlace {
  /// Epochs that are over: the number, from 0, of the one that runs.
  int64_t epoch = 0;
  /// Batches of this epoch that each rank has done.
  int64_t batches = 0;
  /// Optimizer steps of all epochs, with those that a GradScaler skipped.
  int64_t step = 0;
  /// Whether all numbers are equal.
  bool operator==(const TrainingPlace&) const = default;
};

/// One optimizer step.
struct StepReport {
  /// After it.
  TrainingPlace place = {};
  /// The mean of this rank's batches' losses, before the step: a scalar of fp64 on the device, without autograd.
  at::Tensor loss = {};
  /// Before clipping, over all ranks; only with TrainerOptions::max_grad_norm.
  std::optional<double> grad_norm = std::nullopt;

  /// The mean of `loss` over the ranks. Collective, and waits for the device.
  double mean_loss() const;
};

/// What is called when. Any of them may be left out. Every rank calls them alike, so they may communicate.
///
///     trainer.add({.on_epoch_end = [&](const fsdp::TrainingPlace& place) { schedule.step(); }});
struct TrainerCallbacks {
  /// A checkpoint was loaded. `place` is where training goes on, and may be changed.
  std::function<void(const LoadedCheckpoint& loaded, TrainingPlace& place)> on_resume = {};
  /// Before the epoch's first batch is taken; of an epoch that goes on too.
  std::function<void(const TrainingPlace& place)> on_epoch_start = {};
  /// Before gradients are set to zero, e.g. for learning rates.
  std::function<void(const TrainingPlace& place)> on_step_start = {};
  /// After the optimizer's step, or after a GradScaler skipped it.
  std::function<void(const StepReport& report)> on_step_end = {};
  /// Before a checkpoint is written, for what belongs in it, e.g. schedulers.
  std::function<void(SaveOptions& options)> on_save = {};
  /// It is written, or with TrainerCheckpoints::async being written.
  std::function<void(const TrainingPlace& place)> on_saved = {};
  /// All batches of the epoch are done; `place` is still in it. A checkpoint of its last step is from before this, and
  /// who goes on from that one calls it again.
  std::function<void(const TrainingPlace& place)> on_epoch_end = {};
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
