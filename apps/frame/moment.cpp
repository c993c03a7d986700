#include "frame/moment.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace frame {

Moment::Moment(c10::Device device) {
  if (device.is_cpu()) return;
  event_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

double Moment::seconds_since(const Moment& earlier) const {
  if (!event_) return std::chrono::duration<double>(time_ - earlier.time_).count();
  event_->synchronize();
  return earlier.event_->elapsedTime(*event_) / 1000;
}

}  // namespace frame
