#include "runtime/host_rows.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp::runtime {

HostCopies::~HostCopies() {
  try {
    wait();
  } catch (const std::exception&) {
    // After a failure of the device no copy is under way.
  }
}

c10::Stream HostCopies::next_to_host(c10::Device device) {
  last_source_.reset();
  if (!to_host_ || to_host_->device() != device)
    to_host_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return *to_host_;
}

void HostCopies::note(const std::shared_ptr<memory::FlatBuffer>& on_host, c10::Device device, at::Tensor source) {
  kept_.insert(on_host);
  if (source.defined()) last_source_ = std::move(source);
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

}  // namespace fsdp::runtime
