#include "comm/c10d/stream_order.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace fsdp {

struct StreamOrder::Events {
  explicit Events(c10::DeviceType type) : submitted(type), finished(type) {}
  c10::Event submitted, finished;
};

namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

StreamOrder::StreamOrder(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  events_ = std::make_shared<Events>(device.type());
  events_->submitted.record(current_stream(device));
}

std::function<void()> StreamOrder::in_lane(std::function<void()> move_data) const {
  if (!events_) return move_data;
  return [device = device_, events = events_, move_data = std::move(move_data)] {
    const c10::impl::VirtualGuardImpl implementation(device.type());
    const c10::Stream stream = implementation.getStreamFromGlobalPool(device);
    c10::StreamGuard guard(stream);
    events->submitted.block(stream);
    move_data();
    events->finished.record(stream);
  };
}

std::shared_ptr<Work> StreamOrder::for_caller(std::shared_ptr<Work> work) const {
  if (!events_) return work;
  class OrderedWork : public Work {
   public:
    OrderedWork(std::shared_ptr<Work> inner, c10::Device device, std::shared_ptr<Events> events)
        : inner_(std::move(inner)), device_(device), events_(std::move(events)) {}
    void wait() override {
      inner_->wait();
      events_->finished.block(current_stream(device_));
    }
    bool lets_others_go_on() const override { return inner_->lets_others_go_on(); }
    std::span<const uint8_t> votes() const override { return inner_->votes(); }

   private:
    const std::shared_ptr<Work> inner_;
    const c10::Device device_;
    const std::shared_ptr<Events> events_;
  };
  return std::make_shared<OrderedWork>(std::move(work), device_, events_);
}

}  // namespace fsdp
