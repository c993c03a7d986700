#include "activation/segment.h"

#include <ATen/core/grad_mode.h>
#include <fsdp/process_group.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::activation {
namespace {

std::string where() {
  try {
    return default_process_group()->where("activation_checkpoint");
  } catch (const UsageError&) {
    return "fsdp::activation_checkpoint: ";
  }
}

// Copies of the buffers that a region writes, such as running statistics. `restore` writes them back after the second
// run. If the run throws, the destructor writes them back and ignores further errors. The buffers' versions are
// restored too, so that autograd does not notice the writes.
class KeptBuffers {
 public:
  explicit KeptBuffers(const std::vector<at::Tensor>& buffers) {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : buffers) kept_.push_back({buffer, buffer.clone(), TensorVersion(buffer)});
  }
  ~KeptBuffers() {
    while (!kept_.empty()) {
      try {
        restore();
      } catch (const std::exception&) {
        // The loop goes on with the other buffers.
      }
    }
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;
  void restore() {
    const at::NoGradGuard no_grad;
    while (!kept_.empty()) {
      auto [buffer, value, version] = std::move(kept_.back());
      kept_.pop_back();
      buffer.variable_data().copy_(value);
      version.restore();
    }
  }

 private:
  struct Kept {
    at::Tensor buffer, value;
    TensorVersion version;
  };
  std::vector<Kept> kept_;
};

// The region with inputs in host memory that ran last on this thread.
thread_local std::weak_ptr<Segment> last_on_host;

std::vector<at::Tensor> joined(std::vector<at::Tensor> some, const std::vector<at::Tensor>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

}  // namespace

/// The saved-tensor hook of one tensor in the graph of forward.
class Segment::LeftOut final : public torch::autograd::SavedVariableHooks {
 public:
  explicit LeftOut(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  ~LeftOut() override {
    if (index_) segment_->forget(*index_);
  }
  LeftOut(const LeftOut&) = delete;
  LeftOut& operator=(const LeftOut&) = delete;
  void call_pack_hook(const at::Tensor& tensor) override {
    version_.emplace(tensor);
    index_ = segment_->add(tensor);
  }
  at::Tensor call_unpack_hook() override {
    if (version_->was_written()) segment_->refuse_written(*index_);  // LibTorch does not check tensors with hooks
    return segment_->value(*index_);
  }

 private:
  const std::shared_ptr<Segment> segment_;
  std::optional<TensorVersion> version_;
  std::optional<size_t> index_;
};

/// The saved-tensor hook of one tensor in the graph of the second run. It returns the tensor if the region itself runs
/// a backward through that graph.
class Segment::Recomputed final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Recomputed(Segment& segment) : segment_(segment) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    segment_.take(tensor_);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Segment& segment_;
  at::Tensor tensor_;
};

Segment::Segment(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                 std::unique_ptr<detail::Recomputation> again)
    : again_(std::move(again)),
      buffers_(options.buffers),
      random_(options.preserve_rng_state ? std::make_optional<RandomStates>(devices_of(inputs)) : std::nullopt),
      sequence_(parallel::SequenceScope::current()),
      slice_(parallel::TokenSlices::current()),
      results_(options.keeps_results) {
  inputs_.reserve(inputs.size());
  for (const auto& input : inputs) inputs_.emplace_back(input, options.offload_inputs, KeptResults::is_scope_open());
}

runtime::SavedTensorScope::Hooks Segment::leave_out() { return std::make_unique<LeftOut>(shared_from_this()); }

void Segment::finish() {
  for (auto& input : inputs_) input.finish();
  {
    const MutexLock lock(mutex_);
    if (slots_.empty()) return;
  }
  require_unwritten("while fn ran");
  if (std::ranges::any_of(inputs_, &KeptTensor::is_on_host)) ahead_ = std::exchange(last_on_host, weak_from_this());
  for (const auto& [name, parameter] : again_->parameters()) parameters_.push_back({name, TensorVersion(parameter)});
  if (account_) charge();
}

void Segment::charge() {
  using memory::ByteClass;
  int64_t on_host = 0;
  for (const auto& input : inputs_) {
    on_host += input.bytes_on_host();
    if (const auto* storage = input.storage())
      input_charges_.push_back(
          kept_inputs_->hold(storage, account_, ByteClass::kActivation, static_cast<int64_t>(storage->nbytes())));
  }
  if (on_host > 0) host_charge_ = memory::Charge(account_, ByteClass::kHost, on_host);
  if (const auto bytes = results_.bytes(); bytes > 0)
    result_charge_ = memory::Charge(account_, ByteClass::kActivation, bytes);
}

void Segment::require_unwritten(const char* when) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].was_written())
      throw UsageError(
          str_cat(where(), "input tensor ", i, " of fn was written in place ", when,
                  ", so fn cannot be computed again. Write to a copy, or call fn without activation_checkpoint"));
  for (const auto& [name, version] : parameters_)
    if (version.was_written())
      throw UsageError(str_cat(where(), "parameter '", name, "' of fn was written in place ", when,
                               ", so fn cannot be computed again. Call optimizer.step() after ", "backward"));
}

void Segment::refuse_written(size_t index) {
  require_unwritten("before backward");
  const MutexLock lock(mutex_);
  const auto& slot = slots_[index];
  throw UsageError(str_cat(where(), "a tensor that fn uses was changed after fn used it: tensor ", index,
                           " of those that autograd saves for fn, ", slot.dtype, c10::IntArrayRef(slot.sizes), " on ",
                           slot.device,
                           ", was written in place, either by fn itself or between fn and backward. Write to a copy, "
                           "or write after backward"));
}

void Segment::refuse_other_run(const std::string& found) const {
  throw UsageError(
      str_cat(where(), "fn did not do in backward what it did in forward: ", found,
              ". Everything that fn depends on and that changes between forward and backward must be an input of fn"));
}

size_t Segment::add(const at::Tensor& tensor) {
  const MutexLock lock(mutex_);
  slots_.push_back({c10::DimVector(tensor.sizes()), tensor.scalar_type(), tensor.device()});
  if (!account_ && runtime::is_marked(*tensor.unsafeGetTensorImpl()))
    if (const auto part = runtime::registry().find(tensor)) {
      account_ = part->group->account();
      kept_inputs_ = part->group->rank_state().kept_inputs;
    }
  return slots_.size() - 1;
}

at::Tensor Segment::value(size_t index) {
  const int task = torch::autograd::get_current_graph_task_id();
  const std::lock_guard computing(computing_);
  const auto find = [&]() -> at::Tensor {
    const MutexLock lock(mutex_);
    return task_ == task ? slots_[index].value : at::Tensor();
  };
  auto value = find();
  if (value.defined()) return value;
  compute(task);
  value = find();
  if (task == -1) clear();  // without a graph task nothing else frees the values
  return value;
}

void Segment::forget(size_t index) {
  at::Tensor value;  // freed after the lock is released
  const MutexLock lock(mutex_);
  slots_[index].is_wanted = false;
  std::swap(value, slots_[index].value);
}

void Segment::take(const at::Tensor& tensor) {
  {
    const MutexLock lock(mutex_);
    if (next_ < slots_.size()) {
      auto& slot = slots_[next_];
      if (tensor.sizes() != slot.sizes || tensor.scalar_type() != slot.dtype || tensor.device() != slot.device)
        refuse_other_run(str_cat("tensor ", next_, " of those that autograd saves for fn is ", tensor.scalar_type(),
                                 tensor.sizes(), " on ", tensor.device(), " in backward, but in forward it was ",
                                 slot.dtype, c10::IntArrayRef(slot.sizes), " on ", slot.device));
      if (slot.is_wanted) slot.value = tensor;
    }
    ++next_;
  }
  if (is_complete()) throw Complete();
}

bool Segment::is_complete() {
  const MutexLock lock(mutex_);
  return std::ranges::none_of(slots_.begin() + static_cast<std::ptrdiff_t>(std::min(next_, slots_.size())),
                              slots_.end(), &Slot::is_wanted);
}

void Segment::clear() {
  std::vector<at::Tensor> values;
  const MutexLock lock(mutex_);
  for (auto& slot : slots_) values.push_back(std::exchange(slot.value, at::Tensor()));
  task_ = -1;
}

void Segment::bring_ahead() {
  const auto ahead = ahead_.lock();
  if (!ahead) return;
  const std::unique_lock computing(ahead->computing_, std::try_to_lock);
  if (!computing) return;
  const auto is_missing = [](const Slot& slot) { return slot.is_wanted && !slot.value.defined(); };
  {
    const MutexLock lock(ahead->mutex_);
    if (std::ranges::none_of(ahead->slots_, is_missing)) return;
  }
  for (auto& input : ahead->inputs_) input.bring();
}

void Segment::drop_brought() {
  const std::unique_lock computing(computing_, std::try_to_lock);
  if (!computing) return;
  for (auto& input : inputs_) input.drop();
}

void Segment::end(int task) {
  {
    const MutexLock lock(mutex_);
    if (task_ != task) return;
  }
  clear();
}

void Segment::compute(int task) {
  if (is_computing_)
    throw UsageError(
        where() +
        "when fn is computed again, it runs a backward that needs the result of fn. Let fn depend only on its inputs");
  require_unwritten("before backward");
  clear();
  {
    const MutexLock lock(mutex_);
    task_ = task;
    next_ = 0;
  }
  try {
    run_again(task);
  } catch (...) {
    clear();
    throw;
  }
  if (!is_complete()) {
    clear();
    const MutexLock lock(mutex_);
    refuse_other_run(
        str_cat("autograd saves ", next_, " tensors for fn in backward, but saved ", slots_.size(), " in forward"));
  }
  if (task == -1) return;
  torch::autograd::Engine::get_default_engine().queue_callback([segment = weak_from_this(), ahead = ahead_, task] {
    if (const auto self = segment.lock()) self->end(task);
    if (const auto self = ahead.lock()) self->drop_brought();
  });
}

void Segment::run_again(int task) {
  struct Computing {
    bool& flag;
    explicit Computing(bool& is_computing) : flag(is_computing) { flag = true; }
    ~Computing() { flag = false; }
  } const computing(is_computing_);
  std::vector<at::Tensor> inputs;
  for (auto& input : inputs_) inputs.push_back(input.value());
  if (task != -1) bring_ahead();  // without a graph task nothing would free unused tensors

  const at::AutoGradMode records(true);
  const Restored autocast{AutocastState()};
  autocast_.restore_uncached();
  const parallel::SequenceScope::Entered sequence(sequence_);
  const parallel::TokenSlices::Entered slice(slice_);
  std::optional<Restored<RandomStates>> random;
  if (random_) {
    random.emplace(random_->now());
    random_->restore();
  }
  KeptBuffers buffers(joined(again_->buffers(), buffers_));
  try {
    const runtime::SavedTensorScope hooks([this] { return std::make_unique<Recomputed>(*this); });
    const KeptResults::Scope results(results_, KeptResults::Pass::kAgain);
    again_->run(std::move(inputs));
  } catch (...) {
    // Complete, the exception that ends the run, is not caught by type, because TorchScript replaces it by its own.
    if (!is_complete()) throw;
  }
  buffers.restore();
}

}  // namespace fsdp::activation
