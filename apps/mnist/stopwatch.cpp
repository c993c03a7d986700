#include "stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace mnist {
namespace {

c10::Event event_now(c10::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

Stopwatch::Stopwatch(c10::Device device) : device_(device) {
  if (!device.is_cpu()) start_.emplace(event_now(device));
}

double Stopwatch::seconds() const {
  if (!start_) return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  const auto end = event_now(device_);
  end.synchronize();
  return start_->elapsedTime(end) / 1000;
}

}  // namespace mnist
