#include "runtime/reading.h"

#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>
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

// A hook of the node, which goes with it. A weak pointer to a node would keep its memory where nodes have intrusive
// pointers, and with it the accumulators of the group's parameters, which what it saved by hooks names: a group would
// never go.
class Reading::ConsumedEdges : public torch::autograd::FunctionPreHook {
 public:
  ConsumedEdges(std::shared_ptr<Reading> reading, int64_t edges) : reading_(std::move(reading)), edges_(edges) {
    reading_->consumed_edges_ += edges_;
  }
  ~ConsumedEdges() override { reading_->consumed_edges_ -= edges_; }
  variable_list operator()(const variable_list& gradients) override { return gradients; }
  bool is_of(const Reading& reading) const { return reading_.get() == &reading; }

 private:
  const std::shared_ptr<Reading> reading_;
  const int64_t edges_;
};

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
  if (!is_shared()) return;
  std::lock_guard lock(mutex_);
  is_open_ = true;
  if (reads_ && epoch_ == epoch) return;
  reads_ = true;
  epoch_ = epoch;
  for (auto* buffer : buffers_) buffer->begin_read(epoch);
}

void Reading::leave(bool is_hidden) {
  std::vector<WeakNode> gone;  // their last memory goes after the lock
  std::unique_lock lock(mutex_);
  is_open_ = false;
  is_hidden_ |= is_hidden && reads_;
  forget_gone(gone);
  edges_left_ = has_edges_left();
  end_if_unused();
  found_none_ = false;
  if (!reads_ || !edges_left_ || std::exchange(counts_again_, true)) return;
  auto* const buffer = buffers_.front();
  lock.unlock();
  buffer->while_waiting([weak = weak_from_this()] {
    const auto self = weak.lock();
    return self && self->count_again();
  });
}

// Returns whether it is to be called again.
bool Reading::count_again() {
  std::lock_guard lock(mutex_);
  if (!reads_ || !edges_left_ || is_open_) return counts_again_ = false;
  // While another thread drops a graph that ran, the edges of one of its nodes may be gone before the node is: only two
  // counts, with time between them, tell that none is left.
  if (has_edges_left()) {
    found_none_ = false;
    return true;
  }
  if (!std::exchange(found_none_, true)) return true;
  edges_left_ = false;
  end_if_unused();
  return counts_again_ = false;
}

void Reading::forget_gone(std::vector<WeakNode>& gone) {
  std::erase_if(accumulators_seen_, [&](const WeakNode& accumulator) {
    if (!accumulator.expired()) return false;
    gone.push_back(accumulator);
    return true;
  });
}

bool Reading::has_edges_left() const {
  int64_t edges = 0;
  for (const auto& accumulator : accumulators_seen_) edges += static_cast<int64_t>(accumulator.use_count());
  // A node that is gone has let go of its edges before: in this order there is at worst one too many.
  std::atomic_thread_fence(std::memory_order_acquire);
  return edges > consumed_edges_;
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

void Reading::watch(const NodePointer& accumulator) {
  auto& hooks = accumulator->pre_hooks();
  if (std::ranges::any_of(hooks, [](const auto& hook) { return typeid(*hook) == typeid(WithAccumulator); })) return;
  accumulator->add_pre_hook(std::make_unique<WithAccumulator>(Claim(shared_from_this(), accumulators_)));
  std::lock_guard lock(mutex_);
  accumulators_seen_.push_back(weak(accumulator));
}

void Reading::note_consumed(torch::autograd::Node& node, int64_t edges) {
  if (!is_shared()) return;
  const auto is_noted = [&](const auto& hook) {  // a node that saves nothing may run several times
    return typeid(*hook) == typeid(ConsumedEdges) && static_cast<const ConsumedEdges&>(*hook).is_of(*this);
  };
  if (std::ranges::any_of(node.pre_hooks(), is_noted)) return;
  node.add_pre_hook(std::make_unique<ConsumedEdges>(shared_from_this(), edges));
}

}  // namespace fsdp::runtime
