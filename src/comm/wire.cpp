#include "comm/wire.h"

namespace fsdp {

Wire::Message Wire::send(const at::Tensor& tensor, int peer, Channel channel) {
  if (tensor.numel() == 0) return {};
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->send(tensors, peer, static_cast<int>(channel)), peer};
}

Wire::Message Wire::recv(const at::Tensor& tensor, int peer, Channel channel) {
  if (tensor.numel() == 0) return {};
  std::vector<at::Tensor> tensors{tensor};
  return {backend_->recv(tensors, peer, static_cast<int>(channel)), peer};
}

void Wire::wait(const Message& message) {
  if (!message.work) return;
  waiting_for_ = message.peer;
  {
    std::lock_guard lock(mutex_);
    if (interrupted_) throw Interrupted();
    pending_ = message.work;
  }
  // An abort between here and the wait is kept by the backend and ends the wait when it begins. A wait that throws
  // leaves waiting_for_ as it is: the report names that rank.
  const bool arrived = message.work->wait(timeout_);
  {
    std::lock_guard lock(mutex_);
    pending_.reset();
    if (interrupted_ || !arrived) throw Interrupted();
  }
  waiting_for_ = -1;
}

void Wire::interrupt() {
  std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (pending_) pending_->abort();
}

}  // namespace fsdp
