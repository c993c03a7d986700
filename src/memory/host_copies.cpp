#include "memory/host_copies.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

#include "comm/core/current_stream.h"

namespace fsdp::memory {

HostCopies::~HostCopies() {
  try {
    wait();
  } catch (const std::exception&) {
    // A device that failed copies nothing any more.
  }
}

c10::Stream HostCopies::next_to_host(c10::Device device) {
  last_source_.reset();
  if (!to_host_ || to_host_->device() != device)
    to_host_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return *to_host_;
}

void HostCopies::to_device(const at::Tensor& to, const FlatPart& from, bool is_pinned) {
  to.copy_(from.tensor(), /*non_blocking=*/is_pinned);
  if (is_pinned) note(from.buffer, to.device());
}

void HostCopies::to_host(const FlatPart& to, const at::Tensor& from, bool is_pinned) {
  note_use(from);
  to.tensor().copy_(from, /*non_blocking=*/is_pinned);
  if (!is_pinned) return;
  note(to.buffer, from.device());
  last_source_ = from;
}

void HostCopies::note(const std::shared_ptr<FlatBuffer>& on_host, c10::Device device) {
  kept_.insert(on_host);
  const auto stream = current_stream(device);
  if (std::ranges::find(under_way_, stream) == under_way_.end()) under_way_.push_back(stream);
}

void HostCopies::wait() {
  if (under_way_.empty()) return;
  const auto last = under_way_.back();
  c10::Event over(last.device_type());
  under_way_.pop_back();
  for (const auto& stream : under_way_) {
    c10::Event event(stream.device_type());
    event.record(stream);
    event.block(last);
  }
  over.record(last);
  over.synchronize();
  under_way_.clear();
  kept_.clear();
  last_source_.reset();
}

}  // namespace fsdp::memory
