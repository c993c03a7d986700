#include "runtime/reading.h"

#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <typeinfo>

namespace fsdp::runtime {
namespace {

using torch::autograd::variable_list;

class WithAccumulator : public torch::autograd::FunctionPreHook {
 public:
  explicit WithAccumulator(Reading::Claim claim) : claim_(std::move(claim)) {}
  variable_list operator()(const variable_list& gradients) override { return gradients; }

 private:
  Reading::Claim claim_;
};

}  // namespace

void Reading::Claim::drop() {
  const auto reading = std::exchange(reading_, nullptr);
  if (!reading || --*count_ > 0) return;
  std::lock_guard lock(reading->mutex_);
  reading->end_if_unused();
}

void Reading::close() {
  end();
  std::lock_guard lock(mutex_);
  buffers_.clear();
}

void Reading::begin(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  is_open_ = true;
  if (reads_ && epoch_ == epoch) return;
  reads_ = true;
  epoch_ = epoch;
  for (auto* buffer : buffers_) buffer->begin_read(epoch);
}

void Reading::leave(int64_t edges, bool is_hidden) {
  std::vector<WeakNode> gone;  // their last memory goes after the lock
  std::lock_guard lock(mutex_);
  is_open_ = false;
  is_hidden_ |= is_hidden && reads_;
  for (auto it = consumed_.begin(); it != consumed_.end();) {
    if (it->second.node.expired()) {
      gone.push_back(std::move(it->second.node));
      it = consumed_.erase(it);
    } else {
      edges -= it++->second.edges;
    }
  }
  edges_left_ = edges > 0;
  end_if_unused();
}

bool Reading::end() {
  if (!reads_) return false;
  std::lock_guard lock(mutex_);
  const bool read = reads_;
  end_reading();
  return read;
}

bool Reading::is_open() {
  std::lock_guard lock(mutex_);
  return is_open_ && reads_;
}

void Reading::end_if_unused() {
  if (!is_open_ && !is_hidden_ && nodes_ == 0 && (!edges_left_ || accumulators_ == 0)) end_reading();
}

void Reading::end_reading() {
  is_hidden_ = false;
  if (!reads_.exchange(false)) return;
  for (auto* buffer : buffers_) buffer->end_read();
}

int64_t Reading::watch(const NodePointer& accumulator) {
  auto& hooks = accumulator->pre_hooks();
  if (std::ranges::none_of(hooks, [](const auto& hook) { return typeid(*hook) == typeid(WithAccumulator); }))
    accumulator->add_pre_hook(std::make_unique<WithAccumulator>(Claim(shared_from_this(), accumulators_)));
  return static_cast<int64_t>(accumulator.use_count()) - 1;  // the caller's
}

void Reading::note_consumed(const NodePointer& node, int64_t edges) {
  if (!is_shared()) return;
  std::lock_guard lock(mutex_);
  consumed_.insert_or_assign(node.get(), Consumed{weak(node), edges});
}

}  // namespace fsdp::runtime
