#pragma once
/// \file
/// Options and callbacks of a Trainer.

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

/// Dtype in which whole parameters are gathered and operators compute. Rows, their gradients and optimizer state keep
/// the parameters' own dtype.
enum class Precision : uint8_t {
  /// The parameters' dtype.
  kFull,
  /// bf16, with gradients that are summed in fp32.
  kBFloat16,
  /// fp16, also for the sums of gradients, with a GradScaler.
  kFloat16,
};

/// Options that say which checkpoints a Trainer writes.
struct TrainerCheckpoints {
  /// Path of the folder of the checkpoints; if empty, none are written. If set, Trainer::fit also writes a checkpoint
  /// after the last step, and SIGTERM and SIGINT end training with a checkpoint.
  std::string folder = {};
  /// Number of steps from one checkpoint to the next; if 0, there is a checkpoint only after the last step.
  int64_t every = 0;
  /// Number of newest checkpoints that stay in the folder; if unset, all stay.
  std::optional<int64_t> keep = 2;
  /// True if checkpoints are written while training continues (async_save_checkpoint).
  bool async = false;
};

/// Options of a Trainer. Every field is optional and must be the same on every rank.
struct TrainerOptions {
  /// Number of ranks that Trainer::run starts on this host if no launcher has started ranks. 0 means one rank, or the
  /// ranks of the launcher. Any other number must be the number of running ranks; otherwise the Trainer's constructor
  /// throws UsageError.
  int devices = 0;
  /// Value of ProcessGroupOptions::backend for Trainer::run.
  std::string backend = "auto";
  /// Seed of the generators. The Trainer's constructor seeds them with this number on every rank, so that a model made
  /// afterwards is the same on every rank. `shard` seeds them with a different number on each rank, so that ranks draw
  /// different dropout masks. If unset, the generators stay as they are.
  std::optional<uint64_t> seed = std::nullopt;

  /// Options that `shard` passes to fully_shard. If they are unset, `mp_policy` follows from `precision` and
  /// `autocast`, `mesh` from `mesh_shape`, and `device` is this rank's device unless an offload policy is set.
  FullyShardOptions sharding = {};
  /// Sizes of the axes of Trainer::mesh (init_device_mesh): {8} is one axis, "shard"; {2, 4} are the axes "replicate"
  /// and "shard". If empty, only `sharding.mesh` decides how rows are sharded.
  std::vector<int> mesh_shape = {};
  /// Names of the axes of Trainer::mesh: "data" and any of "pipe", "sequence" and "tensor", in any order. Rows are then
  /// sharded over the ranks of "data" and "sequence" together. If empty, they are the names that `mesh_shape`
  /// describes.
  ///
  ///     options.mesh_shape = {2, 2, 2, 1};
  ///     options.mesh_dim_names = {"pipe", "data", "sequence", "tensor"};
  std::vector<std::string> mesh_dim_names = {};
  /// Dtype of compute if `sharding.mp_policy` is unset.
  Precision precision = Precision::kFull;
  /// True if operators compute in the dtype that LibTorch's autocast chooses: fp32 for norms, softmax and losses; for
  /// other operators fp16 with Precision::kFloat16, otherwise bf16. With Precision::kFull whole parameters are then
  /// gathered in bf16.
  bool autocast = false;
  /// Options of the loss scaler for Precision::kFloat16. The Trainer sets `enabled`.
  GradScalerOptions scaler = {};
  /// Function that `shard` calls with the module before it is sharded, see activation_checkpointing_of.
  std::function<void(torch::nn::Module& module)> activation_checkpointing = {};

  /// Number of passes over the data.
  int64_t epochs = 1;
  /// Number of optimizer steps, including those of earlier runs, after which training ends. If unset, training ends
  /// after the epochs.
  std::optional<int64_t> steps = std::nullopt;
  /// Number of batches of a rank whose gradients are accumulated for one optimizer step and reduced once. The last step
  /// of an epoch takes the batches that are left.
  int64_t accumulate = 1;
  /// Largest norm of the gradients over all parameters and ranks, to which clip_grad_norm_ clips them. If unset,
  /// gradients are not clipped.
  std::optional<double> max_grad_norm = std::nullopt;

  /// Options of the checkpoints that Trainer::fit writes.
  TrainerCheckpoints save = {};
  /// Path of a checkpoint, or of a folder whose newest checkpoint is loaded, from which training continues; if empty,
  /// training starts anew. If the path is that of `save.folder`, there may be no checkpoint yet, so the same command
  /// can start a training and resume it.
  std::string resume = {};
};

/// Returns a function for TrainerOptions::activation_checkpointing that calls apply_activation_checkpointing for
/// modules of these types.
///
///     options.activation_checkpointing = fsdp::activation_checkpointing_of<BottleneckImpl>();
template <class... Modules>
std::function<void(torch::nn::Module& module)> activation_checkpointing_of(const CheckpointOptions& options = {}) {
  return [options](torch::nn::Module& module) { apply_activation_checkpointing<Modules...>(module, options); };
}

/// Position in a training. Checkpoints contain it as the state "trainer".
struct TrainingPlace {
  /// Number of epochs that are over, i.e. the number of the current epoch, from 0.
  int64_t epoch = 0;
  /// Number of batches of this epoch that each rank has processed.
  int64_t batches = 0;
  /// Number of optimizer steps of all epochs, including steps that a GradScaler skipped.
  int64_t step = 0;
  /// Returns true if all numbers are equal.
  bool operator==(const TrainingPlace&) const = default;
};

/// Report of one optimizer step.
struct StepReport {
  /// Position in the training after the step.
  TrainingPlace place = {};
  /// Mean loss of this rank's batches, before the step: an fp64 scalar on the device, without autograd history.
  at::Tensor loss = {};
  /// Norm of the gradients over all ranks, before clipping; set only with TrainerOptions::max_grad_norm.
  std::optional<double> grad_norm = std::nullopt;

  /// Returns the mean of `loss` over the ranks. Collective. Waits for the device.
  double mean_loss() const;
};

/// Callbacks of Trainer::fit, each of which may be left empty. All ranks call them in the same order, so they may
/// communicate.
///
///     trainer.add({.on_epoch_end = [&](const fsdp::TrainingPlace& place) { schedule.step(); }});
struct TrainerCallbacks {
  /// Called after a checkpoint was loaded. `place` is the position from which training continues; the callback may
  /// change it.
  std::function<void(const LoadedCheckpoint& loaded, TrainingPlace& place)> on_resume = {};
  /// Called before the first batch of an epoch is taken, also if a resumed training continues in the middle of the
  /// epoch.
  std::function<void(const TrainingPlace& place)> on_epoch_start = {};
  /// Called before the gradients of a step are set to zero, for example to set learning rates.
  std::function<void(const TrainingPlace& place)> on_step_start = {};
  /// Called after an optimizer step, or after a GradScaler has skipped the step.
  std::function<void(const StepReport& report)> on_step_end = {};
  /// Called before a checkpoint is written. The callback may add to `options`, for example the state of schedulers.
  std::function<void(SaveOptions& options)> on_save = {};
  /// Called after a checkpoint was written, or with TrainerCheckpoints::async after the save has begun.
  std::function<void(const TrainingPlace& place)> on_saved = {};
  /// Called after the last step of an epoch; `place` is still in this epoch. A checkpoint of this step is written
  /// before the call, so a training that resumes from this checkpoint makes the call again.
  std::function<void(const TrainingPlace& place)> on_epoch_end = {};
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
