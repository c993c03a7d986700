#pragma once
/// \file
/// `Trainer`, which trains, tests and predicts with a module, data and loss of your own.

#include <ATen/core/grad_mode.h>
#include <c10/core/Device.h>
#include <fsdp/async_save.h>
#include <fsdp/batches.h>
#include <fsdp/device_mesh.h>
#include <fsdp/error.h>
#include <fsdp/fully_shard.h>
#include <fsdp/metrics.h>
#include <fsdp/trainer_options.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

class Pipeline;

/// \addtogroup training
/// \{

namespace detail {

/// Guard that enables autocast with `dtype` on this thread for devices of `device`'s type, and restores the previous
/// setting when it is destroyed. Changes nothing if `dtype` is unset.
class [[nodiscard]] AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, std::optional<at::ScalarType> dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  std::optional<c10::DeviceType> device_;
  bool was_enabled_ = false;
  at::ScalarType previous_dtype_ = at::ScalarType::Undefined;
};

/// Guard that puts a module into evaluation mode and disables grad mode while the guard lives.
template <class Module>
class [[nodiscard]] Evaluation {
 public:
  explicit Evaluation(Module& module) : module_(module), was_training_(module.is_training()) { module.eval(); }
  ~Evaluation() { module_.train(was_training_); }
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

 private:
  at::NoGradGuard no_grad_;
  Module& module_;
  bool was_training_;
};

}  // namespace detail

/// Training loop with ranks, precision, gradient accumulation, clipping, checkpoints and callbacks. The loop is `fit`
/// in src/train/trainer.cpp, one screen of plain LibTorch; it gives the same bits as the same calls written by hand.
/// The model is the handle that fully_shard returns, the optimizer is any optimizer of torch::optim or fsdp::optim, and
/// programs can use every part without the Trainer.
///
/// `Data` is a range of batches of any type, a pointer to a range, such as a data loader, or a function of the epoch
/// that returns one of these. Every rank must have its own share of the data, with the same number of batches (see
/// data::DistributedSampler).
///
/// A Trainer needs a process group: `run` starts ranks or joins those of a launcher, and a program that calls
/// init_process_group itself just makes a Trainer. All functions are collective unless they say otherwise. One thread
/// of each rank uses the Trainer. docs/trainer.md says more.
///
///     int main() {
///       fsdp::Trainer::run({.devices = 4, .seed = 1, .epochs = 3}, [](fsdp::Trainer& trainer) {
///         auto model = trainer.shard(Net());
///         fsdp::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
///         trainer.fit(model, optimizer, batches_of_epoch, [](auto& net, auto& batch) {
///           return torch::cross_entropy_loss(net(batch.data), batch.target);
///         });
///       });
///     }
class Trainer {
 public:
  /// Makes this rank's Trainer. Throws UsageError if there is no default process group, if its number of ranks is not
  /// TrainerOptions::devices, and for invalid options.
  explicit Trainer(TrainerOptions options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Joins the ranks of a launcher, or else starts TrainerOptions::devices ranks as forks of this process, which must
  /// not have started threads (see fsdp::spawn). Calls `body` on each rank and then leaves the process group. The first
  /// SIGTERM or SIGINT is passed on to the ranks, and a second signal ends them. Not collective. Throws what
  /// init_process_group, spawn and `body` throw.
  static void run(const TrainerOptions& options, const std::function<void(Trainer& trainer)>& body);

  /// Adds callbacks. Callbacks of one kind are called in the order in which they were added. Not collective.
  void add(TrainerCallbacks callbacks) { callbacks_.push_back(std::move(callbacks)); }

  /// Calls fully_shard with TrainerOptions::sharding. Takes any module that fully_shard takes, and returns a handle
  /// that can be called.
  ///
  ///     auto model = trainer.shard(net);
  template <class Module>
  auto shard(Module&& module) {
    if (options_.activation_checkpointing) checkpoint_activations(module);
    auto model = fully_shard(std::forward<Module>(module), sharding());
    draw_apart();
    return model;
  }

  /// Tells the Trainer that the model passed to `resume` and `fit` has this rank's stages of `pipeline`. Gradients are
  /// then clipped, and checkpoints saved and loaded, over all stages. `pipeline` must outlive these calls. Not
  /// collective.
  void set_pipeline(const Pipeline& pipeline) { pipeline_ = &pipeline; }

  /// Loads the checkpoint of TrainerOptions::resume into the model, the optimizer, the scaler, the generators and
  /// `place`. Returns false if there was no checkpoint to load. `fit` calls this function unless the program has called
  /// it. Throws what load_checkpoint throws.
  bool resume(const Group& model, torch::optim::Optimizer& optimizer);

  /// Trains from `place` to the end of the epochs or steps. `loss(model, batch)` must return the loss of a batch, a
  /// scalar; its gradients are averaged over batches and ranks. Returns true if training came to the end. Returns false
  /// if `stop` was called, or if checkpoints are saved and any rank got SIGTERM or SIGINT. After a signal every rank
  /// finishes its step and saves a checkpoint. The program should then end with status 0, and a program that resumes
  /// continues bit for bit as without a break. A second signal ends the process at once.
  ///
  /// If `loss` takes three arguments, (model, batch, weight), it must itself run backward from `weight` times the loss
  /// and return the loss without a graph. Use such a function for a Pipeline, because Pipeline::step runs forward and
  /// backward.
  ///
  ///     trainer.set_pipeline(pipeline);
  ///     trainer.fit(model, optimizer, data, [&](auto&, auto& batch, double weight) {
  ///       return pipeline.step(batch.data, batch.target, [&](auto& output, auto& target) {
  ///         return weight * loss_of(output, target);
  ///       }) / weight;
  ///     });
  ///
  /// Throws UsageError if an epoch has no batch, and if the loss is not a scalar or does not require a gradient. Also
  /// throws what the loss, the callbacks and the called functions throw.
  template <class Holder, class Data, class Loss>
  bool fit(Sharded<Holder>& model, torch::optim::Optimizer& optimizer, Data&& data, Loss&& loss) {
    model->train();
    detail::MicroBatchesOf<Sharded<Holder>, std::remove_reference_t<Data>, std::remove_reference_t<Loss>> batches(
        model, data, loss);
    return fit(model, optimizer, batches);
  }

  /// Returns sums over all batches and ranks, the same on every rank. `measure(model, batch)` must return a vector of
  /// scalar tensors; element i of the result is the sum of these vectors' elements i. The model is in evaluation mode,
  /// without gradients. Throws UsageError if there is no batch.
  ///
  ///     const auto sums = trainer.test(model, loader, [](auto& net, auto& batch) -> std::vector<torch::Tensor> {
  ///       return {net(batch.data).argmax(1).eq(batch.target).sum(), torch::tensor(batch.target.size(0))};
  ///     });
  ///     const double accuracy = sums[0] / sums[1];
  template <class Holder, class Data, class Measure>
  std::vector<double> test(Sharded<Holder>& model, Data&& data, Measure&& measure) {
    std::optional<RunningSums> sums;
    evaluate(model, data, [&](auto& batch) {
      const std::vector<at::Tensor> values = measure(model, batch);
      if (!sums) sums.emplace(static_cast<int64_t>(values.size()), device_);
      sums->add(values);
    });
    if (!sums) throw no_batch("test");
    return sums->over_ranks();
  }

  /// Returns the results of `forward(model, batch)` for each batch of this rank, in order. The model is in evaluation
  /// mode, without gradients.
  ///
  ///     auto scores = trainer.predict(model, loader, [](auto& net, auto& batch) { return net(batch.data).cpu(); });
  template <class Holder, class Data, class Forward>
  auto predict(Sharded<Holder>& model, Data&& data, Forward&& forward) {
    using Batch = typename detail::EpochOfBatches<std::remove_reference_t<Data>>::Batch;
    std::vector<std::decay_t<std::invoke_result_t<Forward&, Sharded<Holder>&, Batch&>>> results;
    evaluate(model, data, [&](auto& batch) { results.push_back(forward(model, batch)); });
    return results;
  }

  /// Ends `fit` after the current step, for example when a loss no longer falls. Call this function in a callback, on
  /// every rank.
  void stop() { is_stopped_ = true; }

  /// Returns how far training has come. Not collective.
  const TrainingPlace& place() const { return place_; }
  /// Returns the loss scaler that TrainerOptions::scaler describes; it does nothing unless the precision is
  /// Precision::kFloat16. Not collective.
  GradScaler& scaler() { return scaler_; }
  /// Returns the device of this rank's tensors, on which batches must be. Not collective.
  c10::Device device() const { return device_; }
  /// Returns the mesh that TrainerOptions::mesh_shape describes; if that is empty, a mesh of one axis of all ranks. The
  /// first call is collective; `shard` makes it if rows are sharded over this mesh.
  ///
  ///     auto pipe = trainer.mesh().process_group("pipe");
  const DeviceMesh& mesh();
  /// Returns the options of the constructor. After `shard`, TrainerOptions::sharding has the settings that follow from
  /// the other options. Not collective.
  const TrainerOptions& options() const { return options_; }

 private:
  bool fit(const Group& model, torch::optim::Optimizer& optimizer, detail::MicroBatches& batches);
  bool has_more_epochs() const;
  bool has_more_steps() const;
  void begin_epoch(detail::MicroBatches& batches);
  at::Tensor loss_of(detail::MicroBatches& batches, int64_t number, int64_t taken);
  void end_epoch(AsyncSave& saving, const Group& model, const torch::optim::Optimizer& optimizer);
  bool saves_after_step() const;
  void save(AsyncSave& saving, const Group& model, const torch::optim::Optimizer& optimizer);
  template <class Callback, class... Arguments>
  void call(Callback TrainerCallbacks::* callback, Arguments&... arguments) const;

  const FullyShardOptions& sharding();
  void draw_apart() const;
  std::optional<at::ScalarType> autocast_dtype() const;
  UsageError no_batch(const char* operation) const;

  template <class Module>
  void checkpoint_activations(Module& module) const {
    if constexpr (std::is_base_of_v<torch::nn::Module, Module>)
      options_.activation_checkpointing(module);
    else if constexpr (requires { *module; })
      options_.activation_checkpointing(*module);
    else
      throw UsageError(
          "Trainer::shard: a TorchScript module does not support activation_checkpointing. Leave the option out.");
  }

  template <class Holder, class Data, class Act>
  void evaluate(Sharded<Holder>& model, Data& data, const Act& act) {
    auto& module = *model.operator->();
    const detail::Evaluation<std::remove_reference_t<decltype(module)>> evaluation(module);
    const detail::AutocastScope autocast(device_.type(), autocast_dtype());
    detail::EpochOfBatches<Data> batches(data, 0);
    while (batches.next()) {
      auto&& batch = batches.batch();
      act(batch);
    }
  }

  TrainerOptions options_;
  c10::Device device_;
  std::optional<DeviceMesh> mesh_;
  const Pipeline* pipeline_ = nullptr;
  std::vector<TrainerCallbacks> callbacks_;
  GradScaler scaler_;
  TrainingPlace place_;
  // States of the generators at the beginning of the epoch of `place_`, by their names in checkpoints.
  std::map<std::string, at::Tensor> epochs_random_states_;
  int64_t may_lack_ = 0;  // see train::ResumedPlace
  std::optional<int64_t> saved_step_;
  bool has_resumed_ = false, is_stopped_ = false;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
