#include "comm/c10d/wire.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace fsdp {

Wire::Transfer Wire::send(const at::Tensor& tensor, int peer, Channel channel) {
  if (tensor.numel() == 0) return {};
  if (traffic_) traffic_->add_message(peer, /*is_header=*/channel != Channel::kData);
  if (traffic_ && channel == Channel::kData) traffic_->with(peer).add_sent(tensor.nbytes());
  std::vector<at::Tensor> tensors{tensor};
  std::lock_guard lock(transport_->mutex);
  return {transport_->backend->send(tensors, peer, tag(channel)), peer};
}

Wire::Transfer Wire::recv(const at::Tensor& tensor, int peer, Channel channel) {
  if (tensor.numel() == 0) return {};
  if (traffic_ && channel == Channel::kData) traffic_->with(peer).add_received(tensor.nbytes());
  std::vector<at::Tensor> tensors{tensor};
  std::lock_guard lock(transport_->mutex);
  return {transport_->backend->recv(tensors, peer, tag(channel)), peer};
}

std::chrono::milliseconds Wire::time_left() const {
  using std::chrono::milliseconds;
  // Rounded up: a wait that ends with it has taken the whole timeout.
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline_ - std::chrono::steady_clock::now()));
}

void Wire::wait(const Transfer& transfer) {
  if (!transfer.work) return;
  waiting_for_ = transfer.peer;
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) throw Interrupted();
    pending_ = transfer.work;
  }
  // An abort between here and the wait is kept by the backend and ends the wait when it begins. A wait that throws
  // leaves waiting_for_ as it is: the report names that rank.
  const bool arrived = transfer.work->wait(time_left());
  {
    std::lock_guard lock(mutex_);
    pending_.reset();
    if (interrupted_ || !arrived) throw Interrupted();
  }
  waiting_for_ = -1;
}

void Wire::wait_elsewhere(const std::function<void()>& wait, std::function<void()> end) {
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) throw Interrupted();
    end_ = std::move(end);
  }
  std::exception_ptr error;
  try {
    wait();
  } catch (...) {
    error = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  end_ = nullptr;
  changed_.notify_all();
  if (interrupted_) throw Interrupted();
  if (error) std::rethrow_exception(error);
}

void Wire::interrupt() {
  std::unique_lock lock(mutex_);
  interrupted_ = true;
  if (pending_) pending_->abort();
  if (!end_) return;
  const auto end = end_;
  lock.unlock();
  end();
  lock.lock();
  changed_.wait(lock, [&] { return !end_; });
}

}  // namespace fsdp
