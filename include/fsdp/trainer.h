#pragma once
/// \file
/// `Trainer`: training, testing and predicting with one's own module, data and loss.

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

/// While it lives, the thread's operators on this type of device choose their dtype as autocast does; without a dtype
/// nothing changes. Afterwards autocast is as it was.
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

/// While it lives, the module evaluates, without gradients.
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

/// Training as a loop that one would write by hand, with what goes around it: ranks, precision, accumulation, clipping,
/// checkpoints, callbacks. The loop is `fit` in src/train/trainer.cpp, one screen of plain LibTorch; it gives the bits
/// that the same calls written by hand give. Nothing is hidden in it: the model is what fully_shard returns, the
/// optimizer any of torch::optim and fsdp::optim, and every part can be used without the Trainer.
///
/// `Data` is a range of batches of any type, a pointer to one such as a data loader, or a function of the epoch that
/// returns either. Every rank has a share of its own, the same number of batches (data::DistributedSampler).
///
/// Ranks are there before a Trainer: `run` starts them or joins a launcher's; a program that calls init_process_group
/// itself just makes one. Everything is collective. One thread. docs/trainer.md has more.
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
  /// For this rank. Throws UsageError where there is no default process group, another number of ranks than
  /// TrainerOptions::devices, or an option that cannot be right.
  explicit Trainer(TrainerOptions options = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Joins the ranks of a launcher, or else starts TrainerOptions::devices as forks of this process (fsdp::spawn, with
  /// its conditions), which must not have started threads then; calls `body` in each and leaves. The first SIGTERM or
  /// SIGINT goes on to the ranks, the second one ends them. Not collective. Throws what init_process_group, spawn and
  /// `body` throw.
  static void run(const TrainerOptions& options, const std::function<void(Trainer& trainer)>& body);

  /// Callbacks of one kind are called in the order in which they were added.
  void add(TrainerCallbacks callbacks) { callbacks_.push_back(std::move(callbacks)); }

  /// fully_shard with the options: takes and returns what that does, a handle that can be called.
  ///
  ///     auto model = trainer.shard(net);
  template <class Module>
  auto shard(Module&& module) {
    if (options_.activation_checkpointing) checkpoint_activations(module);
    auto model = fully_shard(std::forward<Module>(module), sharding());
    draw_apart();
    return model;
  }

  /// The model that `resume` and `fit` get is this rank's stages of `pipeline`, which outlives them: gradients are
  /// clipped, and checkpoints saved and loaded, over all stages.
  void set_pipeline(const Pipeline& pipeline) { pipeline_ = &pipeline; }

  /// Loads the checkpoint of TrainerOptions::resume into the model, the optimizer, the scaler, the generators and
  /// `place`; false: there was none to load. `fit` calls it unless that was done. Throws what load_checkpoint throws.
  bool resume(const Group& model, torch::optim::Optimizer& optimizer);

  /// Trains from `place` on to the end of the epochs or steps. `loss(model, batch)` returns the loss of a batch, a
  /// scalar whose gradients are averaged over batches and ranks. Returns whether it came to the end: not if `stop` was
  /// called, or where checkpoints are saved SIGTERM or SIGINT came. Then the step is finished and saved on every rank,
  /// the program should end with status 0, and one that resumes goes on bit for bit as without a break. A second signal
  /// ends the process at once.
  ///
  /// A function of three arguments, `step(model, batch, weight)`, goes backward itself, from `weight` times the loss,
  /// and returns the loss without a graph: for a Pipeline, whose step does both.
  ///
  ///     trainer.set_pipeline(pipeline);
  ///     trainer.fit(model, optimizer, data, [&](auto&, auto& batch, double weight) {
  ///       return pipeline.step(batch.data, batch.target, [&](auto& output, auto& target) {
  ///         return weight * loss_of(output, target);
  ///       }) / weight;
  ///     });
  ///
  /// Throws UsageError if an epoch has no batch, or the loss is no scalar with a gradient; else what its parts throw.
  template <class Holder, class Data, class Loss>
  bool fit(Sharded<Holder>& model, torch::optim::Optimizer& optimizer, Data&& data, Loss&& loss) {
    model->train();
    detail::MicroBatchesOf<Sharded<Holder>, std::remove_reference_t<Data>, std::remove_reference_t<Loss>> batches(
        model, data, loss);
    return fit(model, optimizer, batches);
  }

  /// The sums over all batches and ranks of the scalars that `measure(model, batch)` returns, a vector of tensors: the
  /// same on every rank. The model evaluates, without gradients. Throws UsageError if there is no batch.
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

  /// What `forward(model, batch)` returns for each batch of this rank, in order. The model evaluates, without
  /// gradients.
  ///
  ///     auto scores = trainer.predict(model, loader, [](auto& net, auto& batch) { return net(batch.data).cpu(); });
  template <class Holder, class Data, class Forward>
  auto predict(Sharded<Holder>& model, Data&& data, Forward&& forward) {
    using Batch = typename detail::EpochOfBatches<std::remove_reference_t<Data>>::Batch;
    std::vector<std::decay_t<std::invoke_result_t<Forward&, Sharded<Holder>&, Batch&>>> results;
    evaluate(model, data, [&](auto& batch) { results.push_back(forward(model, batch)); });
    return results;
  }

  /// Ends `fit` after the step that runs, e.g. when a loss no longer falls: in a callback, on every rank.
  void stop() { is_stopped_ = true; }

  /// How far training is.
  const TrainingPlace& place() const { return place_; }
  /// Of TrainerOptions::scaler; it does nothing unless the precision is Precision::kFloat16.
  GradScaler& scaler() { return scaler_; }
  /// Of this rank's tensors: where batches have to be.
  c10::Device device() const { return device_; }
  /// The ranks as TrainerOptions::mesh_shape lays them out. The first call is collective, and `shard` makes it.
  ///
  ///     auto pipe = trainer.mesh().process_group("pipe");
  const DeviceMesh& mesh();
  /// As it was made with; from `shard` on `sharding` has what follows from the other options.
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
  // What the generators' states were when the epoch of `place_` began, by their names in checkpoints.
  std::map<std::string, at::Tensor> epochs_random_states_;
  int64_t may_lack_ = 0;  // see train::ResumedPlace
  std::optional<int64_t> saved_step_;
  bool has_resumed_ = false, is_stopped_ = false;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
