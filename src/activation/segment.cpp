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

// Buffers that a part writes are as before when it has run again. Their versions stay too: for the graph nobody wrote.
class KeptBuffers {
 public:
  explicit KeptBuffers(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : buffers_) values_.push_back(buffer.clone());
  }
  ~KeptBuffers() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].variable_data().copy_(values_[i]);
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  std::vector<at::Tensor> buffers_, values_;
};

std::vector<at::Tensor> joined(std::vector<at::Tensor> some, const std::vector<at::Tensor>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

}  // namespace

/// In the graph of forward.
class Segment::LeftOut final : public torch::autograd::SavedVariableHooks {
 public:
  explicit LeftOut(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}
  ~LeftOut() override {
    if (index_) segment_->forget(*index_);
  }
  LeftOut(const LeftOut&) = delete;
  LeftOut& operator=(const LeftOut&) = delete;
  void call_pack_hook(const at::Tensor& tensor) override { index_ = segment_->add(tensor); }
  at::Tensor call_unpack_hook() override { return segment_->value(*index_); }

 private:
  const std::shared_ptr<Segment> segment_;
  std::optional<size_t> index_;
};

/// In the graph of a run, which the part itself may run backward.
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
      random_(options.preserve_rng_state ? std::make_optional<RandomStates>() : std::nullopt),
      results_(options.keeps_results) {
  inputs_.reserve(inputs.size());
  for (const auto& input : inputs) inputs_.emplace_back(input, options.offload_inputs, KeptResults::is_scope_open());
}

runtime::SavedTensorScope::Hooks Segment::leave_out() { return std::make_unique<LeftOut>(shared_from_this()); }

void Segment::finish() {
  for (auto& input : inputs_) input.finish();
  {
    const std::lock_guard lock(mutex_);
    if (slots_.empty()) return;
  }
  require_unwritten("when fn had run");
  if (!account_) return;
  int64_t bytes = results_.bytes();
  for (const auto& input : inputs_) bytes += input.bytes();
  charge_ = memory::Charge(account_, memory::ByteClass::kActivation, bytes);
}

void Segment::require_unwritten(const char* when) const {
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].was_written())
      throw UsageError(c10::str(
          where(), "expected the inputs of fn as they were given, found tensor ", i, " of them written in place ", when,
          ", so fn cannot be computed again. Write to a copy, or call fn without activation_checkpoint"));
}

void Segment::refuse_other_run(const std::string& found) const {
  throw UsageError(c10::str(where(), "expected fn to do in backward what it did in forward, found ", found,
                            ". fn must depend on nothing but its inputs that changes in between"));
}

size_t Segment::add(const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  slots_.push_back({c10::DimVector(tensor.sizes()), tensor.scalar_type(), tensor.device()});
  if (!account_ && runtime::is_marked(*tensor.unsafeGetTensorImpl()))
    if (const auto part = runtime::registry().find(tensor)) account_ = part->group->rank_state().shared_account();
  return slots_.size() - 1;
}

at::Tensor Segment::value(size_t index) {
  const int task = torch::autograd::get_current_graph_task_id();
  const std::lock_guard computing(computing_);
  const auto find = [&]() -> at::Tensor {
    const std::lock_guard lock(mutex_);
    return task_ == task ? slots_[index].value : at::Tensor();
  };
  auto value = find();
  if (value.defined()) return value;
  compute(task);
  value = find();
  if (task == -1) clear();  // no end of a graph task will
  return value;
}

void Segment::forget(size_t index) {
  at::Tensor value;  // goes without the lock
  const std::lock_guard lock(mutex_);
  slots_[index].is_wanted = false;
  std::swap(value, slots_[index].value);
}

void Segment::take(const at::Tensor& tensor) {
  {
    const std::lock_guard lock(mutex_);
    if (next_ < slots_.size()) {
      auto& slot = slots_[next_];
      if (tensor.sizes() != slot.sizes || tensor.scalar_type() != slot.dtype || tensor.device() != slot.device)
        refuse_other_run(c10::str("that of what autograd keeps of it tensor ", next_, " is ", tensor.scalar_type(),
                                  tensor.sizes(), " on ", tensor.device(), " and was ", slot.dtype,
                                  c10::IntArrayRef(slot.sizes), " on ", slot.device));
      if (slot.is_wanted) slot.value = tensor;
    }
    ++next_;
  }
  if (is_complete()) throw Complete();
}

bool Segment::is_complete() {
  const std::lock_guard lock(mutex_);
  return std::ranges::none_of(slots_.begin() + static_cast<std::ptrdiff_t>(std::min(next_, slots_.size())),
                              slots_.end(), &Slot::is_wanted);
}

void Segment::clear() {
  std::vector<at::Tensor> values;
  const std::lock_guard lock(mutex_);
  for (auto& slot : slots_) values.push_back(std::exchange(slot.value, at::Tensor()));
  task_ = -1;
}

void Segment::end(int task) {
  {
    const std::lock_guard lock(mutex_);
    if (task_ != task) return;
  }
  clear();
}

void Segment::compute(int task) {
  if (is_computing_)
    throw UsageError(where() + "fn, computed again, runs a backward that needs its own result. Let it depend on its "
                               "inputs only");
  require_unwritten("before backward");
  clear();
  {
    const std::lock_guard lock(mutex_);
    task_ = task;
    next_ = 0;
  }
  try {
    run_again();
  } catch (...) {
    // TorchScript makes another exception of the one that a run ends with.
    if (!is_complete()) {
      clear();
      throw;
    }
  }
  if (!is_complete()) {
    const size_t found = next_;
    clear();
    refuse_other_run(c10::str("that autograd keeps ", found, " tensors of it and kept ", slots_.size()));
  }
  if (task == -1) return;
  torch::autograd::Engine::get_default_engine().queue_callback([segment = weak_from_this(), task] {
    if (const auto self = segment.lock()) self->end(task);
  });
}

void Segment::run_again() {
  struct Computing {
    bool& flag;
    explicit Computing(bool& is_computing) : flag(is_computing) { flag = true; }
    ~Computing() { flag = false; }
  } const computing(is_computing_);
  std::vector<at::Tensor> inputs;
  for (const auto& input : inputs_) inputs.push_back(input.value());

  const at::AutoGradMode records(true);
  const Restored<AutocastState> autocast;
  autocast_.restore_uncached();
  std::optional<Restored<RandomStates>> random;
  if (random_) {
    random.emplace();
    random_->restore();
  }
  const KeptBuffers buffers(joined(again_->buffers(), buffers_));
  const runtime::SavedTensorScope hooks([this] { return std::make_unique<Recomputed>(*this); });
  const KeptResults::Scope results(results_, KeptResults::Pass::kAgain);
  again_->run(std::move(inputs));
}

}  // namespace fsdp::activation
