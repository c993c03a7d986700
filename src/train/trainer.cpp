#include <ATen/Context.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <fsdp/clip_grad.h>
#include <fsdp/pipeline.h>
#include <fsdp/process_group.h>
#include <fsdp/trainer.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "api/rows.h"
#include "comm/core/check.h"
#include "comm/posix/file.h"
#include "runtime/random_state.h"
#include "train/stop_signals.h"
#include "train/training_place.h"

namespace fsdp {
namespace {

using RandomStates = std::map<std::string, at::Tensor>;

constexpr const char* kState = "trainer";
// Prefix of the names under which the random states at the start of an epoch are saved; the device type follows it.
constexpr const char* kAtEpochsStart = "epoch.";
// The names of the mesh's axes.
constexpr std::string_view kData = "data", kPipe = "pipe", kSequence = "sequence", kTensor = "tensor";

bool has_name(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool has_axis(const DeviceMesh& mesh, std::string_view name) { return has_name(mesh.mesh_dim_names(), name); }

void check_options(const TrainerOptions& options) {
  const auto where = [](const char* option) {
    return default_process_group()->where("Trainer") + "the option " + option + ": expected ";
  };
  const int ranks = world_size();
  require(options.devices == 0 || options.devices == ranks, where("devices"), ranks,
          ", because ", ranks, ranks == 1 ? " rank is" : " ranks are", " running, found ", options.devices,
          ". Start the ranks with Trainer::run, or leave devices at 0 if a launcher starts them.");
  require(options.epochs > 0, where("epochs"), "at least 1, found ", options.epochs, ".");
  require(options.accumulate > 0, where("accumulate"), "at least 1 batch for each step, found ", options.accumulate,
          ".");
  require(!options.steps || *options.steps > 0, where("steps"), "at least 1, found ", options.steps.value_or(0), ".");
  require(!options.max_grad_norm || *options.max_grad_norm > 0, where("max_grad_norm"), "more than 0, found ",
          options.max_grad_norm.value_or(0), ".");
  require(options.save.every >= 0, where("save.every"), "a number of steps, or 0 to save only at the end, found ",
          options.save.every, ".");
  const auto& names = options.mesh_dim_names;
  require(options.mesh_shape.size() <= 2 || !names.empty(), where("mesh_shape"), "one or two unnamed sizes, found ",
          options.mesh_shape.size(), ". Name the axes in mesh_dim_names.");
  require(options.mesh_shape.empty() || !options.sharding.mesh || !names.empty(), where("mesh_shape"),
          "no sizes, because sharding.mesh is set. Set only one of the two options.");
  constexpr std::array kKnown = {kData, kPipe, kSequence, kTensor};
  const auto is_known = [&](const std::string& name) { return std::ranges::find(kKnown, name) != kKnown.end(); };
  require(names.empty() || (has_name(names, kData) && std::ranges::all_of(names, is_known)), where("mesh_dim_names"),
          "\"data\" and any of \"", str_join("\", \"", std::span(kKnown).subspan(1)), "\", found \"",
          str_join("\", \"", names), "\".");
}

// Returns the mesh for fully_shard: the axis "data", joined with the axis "sequence" if there is one, or the whole mesh
// if no axis is called "data".
DeviceMesh mesh_of_rows(const DeviceMesh& mesh) {
  if (!has_axis(mesh, kData)) return mesh;
  if (!has_axis(mesh, kSequence)) return mesh[kData];
  const auto& names = mesh.mesh_dim_names();
  const bool is_data_first = std::ranges::find(names, kData) < std::ranges::find(names, kSequence);
  return (is_data_first ? mesh[{kData, kSequence}] : mesh[{kSequence, kData}]).flatten("shard");
}

GradScalerOptions scaler_options(const TrainerOptions& options) {
  GradScalerOptions scaler = options.scaler;
  scaler.enabled = options.precision == Precision::kFloat16;
  return scaler;
}

MixedPrecisionPolicy policy_of(Precision precision) {
  const bool is_fp16 = precision == Precision::kFloat16;
  MixedPrecisionPolicy policy;
  policy.param_dtype = is_fp16 ? at::kHalf : at::kBFloat16;
  if (!is_fp16) policy.reduce_dtype = at::kFloat;
  policy.output_dtype = at::kFloat;  // so that losses are computed in fp32
  return policy;
}

UsageError wrong_loss(const at::Tensor& loss) {
  return UsageError(str_cat(default_process_group()->where("Trainer::fit"), "the loss: expected a scalar, found ",
                            loss.defined() ? str_cat("a tensor of sizes ", loss.sizes()) : "an undefined tensor",
                            ". Return a scalar from the loss function, such as the mean loss."));
}

std::string name_at_epochs_start(const c10::Device& device) {
  return kAtEpochsStart + c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

// Returns the states of the default generators of the CPU and of `device`, by their names in checkpoints.
RandomStates random_states(const c10::Device& device) {
  RandomStates states;
  for (const auto& one : {c10::Device(at::kCPU), device})
    states[name_at_epochs_start(one)] = runtime::random_state(one);
  return states;
}

void set_random_states(const c10::Device& device, const RandomStates& states) {
  for (const auto& one : {c10::Device(at::kCPU), device})
    runtime::set_random_state(one, states.at(name_at_epochs_start(one)));
}

// The destructor turns gradient sync on again, even if the loss function throws between the micro-batches of a step.
class SynchronizedAgain {
 public:
  explicit SynchronizedAgain(const Group& model) : model_(model) {}
  ~SynchronizedAgain() { model_.set_requires_gradient_sync(true); }
  SynchronizedAgain(const SynchronizedAgain&) = delete;
  SynchronizedAgain& operator=(const SynchronizedAgain&) = delete;

 private:
  const Group& model_;
};

/// Returns true if any rank has received a signal, and false if `signals` is null. Collective unless `signals` is null.
bool is_asked_to_end(const std::shared_ptr<const train::StopSignals>& signals) {
  if (!signals) return false;
  const Tag tag{"Trainer::fit, whether a rank was asked to end", {}};
  return all_reduce(at::tensor(signals->received()), ReduceOp::kMax, nullptr, tag).item<int>() != 0;
}

}  // namespace

double StepReport::mean_loss() const { return mean(loss.item<double>(), nullptr, {"StepReport::mean_loss", {}}); }

Trainer::Trainer(TrainerOptions options)
    : options_(std::move(options)), device_(default_process_group()->device()), scaler_(scaler_options(options_)) {
  check_options(options_);
  for (auto* path : {&options_.save.folder, &options_.resume}) *path = absolute_path(*path);
  if (options_.seed) at::manual_seed(*options_.seed);
}

bool Trainer::fit(const Group& model, torch::optim::Optimizer& optimizer, detail::MicroBatches& batches) {
  const auto signals = options_.save.folder.empty() ? nullptr : train::StopSignals::of_process();
  AsyncSave saving;
  is_stopped_ = false;
  if (!has_resumed_) resume(model, optimizer);
  while (has_more_epochs()) {
    begin_epoch(batches);
    int64_t taken = 0;
    while (has_more_steps() && (taken = batches.take(options_.accumulate)) > 0) {
      call(&TrainerCallbacks::on_step_start, place_);
      StepReport report;
      optimizer.zero_grad();
      const SynchronizedAgain synchronized_again(model);
      for (int64_t number = 0; number < taken; ++number) {
        model.set_requires_gradient_sync(number + 1 == taken);  // one reduction for all micro-batches
        const at::Tensor loss = loss_of(batches, number, taken) / taken;
        if (!batches.goes_backward()) scaler_.scale(loss).backward();
        const at::Tensor share = loss.detach().to(at::kDouble);
        report.loss = report.loss.defined() ? report.loss + share : share;
      }
      if (options_.max_grad_norm) {
        scaler_.unscale_(optimizer);
        report.grad_norm = pipeline_ ? clip_grad_norm_(*pipeline_, *options_.max_grad_norm)
                                     : clip_grad_norm_(model, *options_.max_grad_norm);
      }
      scaler_.step(optimizer);
      scaler_.update();

      place_ = report.place = {.epoch = place_.epoch, .batches = place_.batches + taken, .step = place_.step + 1};
      call(&TrainerCallbacks::on_step_end, report);
      if (is_asked_to_end(signals)) stop();
      if (saves_after_step()) save(saving, model, optimizer);
    }
    if (has_more_steps()) end_epoch(saving, model, optimizer);
  }
  saving.wait();
  if (is_asked_to_end(signals)) stop();  // a signal may have come during the last save
  return !is_stopped_;
}

bool Trainer::has_more_steps() const { return !is_stopped_ && (!options_.steps || place_.step < *options_.steps); }

bool Trainer::has_more_epochs() const { return has_more_steps() && place_.epoch < options_.epochs; }

// Begins an epoch. If a resumed training continues in the middle of an epoch, skips the batches that it has completed.
// For this, the generators get their states from the start of the epoch, so the callbacks and the data draw again what
// they drew before the checkpoint, such as the order of samples. Then the generators get their states from the
// checkpoint. All draws are repeated exactly, because the loop takes a step's batches only after the previous step.
void Trainer::begin_epoch(detail::MicroBatches& batches) {
  const auto current = random_states(device_);
  if (place_.batches == 0) epochs_random_states_.clear();
  epochs_random_states_.insert(current.begin(), current.end());  // insert does not replace loaded states
  if (place_.batches > 0) set_random_states(device_, epochs_random_states_);
  call(&TrainerCallbacks::on_epoch_start, place_);
  batches.begin(place_.epoch);
  if (place_.batches == 0) return;
  const int64_t skipped = batches.skip(place_.batches);
  require(skipped + may_lack_ >= place_.batches, default_process_group()->where("Trainer::fit"),
          "expected the data of epoch ", place_.epoch, " to have the ", place_.batches,
          " batches that the loaded training has already processed, found ", skipped,
          ". Resume with the data and the batch size of the saved training.");
  place_.batches = skipped;
  may_lack_ = 0;
  set_random_states(device_, current);
}

at::Tensor Trainer::loss_of(detail::MicroBatches& batches, int64_t number, int64_t taken) {
  const detail::AutocastScope autocast(device_.type(), autocast_dtype());
  const auto share = at::scalar_tensor(1.0 / static_cast<double>(taken), at::kDouble);
  at::Tensor loss = batches.loss(number, batches.goes_backward() ? scaler_.scale(share).item<double>() : 1);
  if (!loss.defined() || loss.numel() != 1) throw wrong_loss(loss);
  if (!batches.goes_backward() && !loss.requires_grad())
    throw UsageError(default_process_group()->where("Trainer::fit") +
                     "the loss does not require a gradient, because it does not depend on a parameter. Compute the "
                     "loss from what the model returns, without detach or NoGradGuard.");
  return loss.reshape({});
}

void Trainer::end_epoch(AsyncSave& saving, const Group& model, const torch::optim::Optimizer& optimizer) {
  if (place_.batches == 0) throw no_batch("fit");
  const bool is_last = place_.epoch + 1 == options_.epochs;
  if (is_last && !options_.save.folder.empty() && saved_step_ != place_.step) save(saving, model, optimizer);
  call(&TrainerCallbacks::on_epoch_end, place_);
  place_ = {.epoch = place_.epoch + 1, .batches = 0, .step = place_.step};
}

bool Trainer::saves_after_step() const {
  if (options_.save.folder.empty()) return false;
  return !has_more_steps() || (options_.save.every > 0 && place_.step % options_.save.every == 0);
}

void Trainer::save(AsyncSave& saving, const Group& model, const torch::optim::Optimizer& optimizer) {
  const auto& to = options_.save;
  SaveOptions options{.step = place_.step,
                      .states = {{kState, train::state_of(place_, world_size())}},
                      .random_states = epochs_random_states_,
                      .keep = to.keep,
                      .scaler = &scaler_};
  call(&TrainerCallbacks::on_save, options);
  const auto write = [&](const auto& what) {
    if (to.async)
      async_save_checkpoint(saving, to.folder, what, &optimizer, options);
    else
      save_checkpoint(to.folder, what, &optimizer, options);
  };
  if (pipeline_)
    write(*pipeline_);
  else
    write(model);
  saved_step_ = place_.step;
  call(&TrainerCallbacks::on_saved, place_);
}

bool Trainer::resume(const Group& model, torch::optim::Optimizer& optimizer) {
  has_resumed_ = true;
  if (options_.resume.empty()) return false;
  const LoadOptions options{.strict = false,
                            .may_differ = {"scaler"},  // a training in another precision saved no scaler
                            .scaler = &scaler_,
                            .if_any = options_.resume == options_.save.folder};
  const auto loaded = pipeline_ ? load_checkpoint(options_.resume, *pipeline_, &optimizer, options)
                                : load_checkpoint(options_.resume, model, &optimizer, options);
  if (loaded.path.empty()) return false;
  const auto resumed = train::place_in(loaded, world_size(), options_.accumulate);
  place_ = resumed.place;
  may_lack_ = resumed.may_lack;
  call(&TrainerCallbacks::on_resume, loaded, place_);
  saved_step_ = place_.step;
  epochs_random_states_.clear();
  if (place_.epoch == resumed.place.epoch)
    for (const auto& [name, state] : loaded.random_states)
      if (name.starts_with(kAtEpochsStart)) epochs_random_states_[name] = state;
  return true;
}

template <class Callback, class... Arguments>
void Trainer::call(Callback TrainerCallbacks::* callback, Arguments&... arguments) const {
  for (const auto& callbacks : callbacks_)
    if (callbacks.*callback) (callbacks.*callback)(arguments...);
}

const DeviceMesh& Trainer::mesh() {
  if (!mesh_) {
    auto names = options_.mesh_dim_names;
    if (names.empty() && options_.mesh_shape.size() == 2) names = {"replicate", "shard"};
    if (names.empty() && options_.mesh_shape.size() == 1) names = {"shard"};
    mesh_ = init_device_mesh(options_.mesh_shape, std::move(names));
  }
  return *mesh_;
}

const FullyShardOptions& Trainer::sharding() {
  auto& sharding = options_.sharding;
  const bool is_low = options_.precision != Precision::kFull || options_.autocast;
  if (!sharding.mp_policy && is_low) sharding.mp_policy = policy_of(options_.precision);
  if (!sharding.mesh && !options_.mesh_shape.empty()) sharding.mesh = mesh_of_rows(mesh());
  if (!sharding.device && !sharding.offload_policy && !device_.is_cpu()) sharding.device = device_;
  return sharding;
}

void Trainer::draw_apart() const {
  if (options_.seed) at::manual_seed(*options_.seed + 1 + static_cast<uint64_t>(rank()));
}

std::optional<at::ScalarType> Trainer::autocast_dtype() const {
  if (!options_.autocast) return std::nullopt;
  return options_.precision == Precision::kFloat16 ? at::kHalf : at::kBFloat16;
}

UsageError Trainer::no_batch(const char* operation) const {
  return UsageError(str_cat(default_process_group()->where(std::string("Trainer::") + operation),
                            "expected data with at least one batch, found none in epoch ", place_.epoch,
                            ". A data loader has batches for one epoch only, unless its sampler starts over. Pass a "
                            "function that makes a data loader for each epoch."));
}

}  // namespace fsdp
