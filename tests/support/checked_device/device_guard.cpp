#include "support/checked_device/device_guard.h"

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <utility>

#include "support/checked_device/caching_allocator.h"
#include "support/checked_device/findings.h"
#include "support/checked_device/host_memory.h"
#include "support/checked_device/operation.h"
#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {
namespace {

constexpr c10::StreamId kPoolStreams = 32;

thread_local c10::DeviceIndex t_device = 0;
thread_local bool t_records_graph = false;
thread_local std::array<c10::StreamId, kDevices> t_streams{};

std::atomic<uint64_t> taken_from_pool = 0;
std::atomic<c10::StreamId> last_new_stream = kPoolStreams;

struct RecordedEvent {
  VectorClock clock;
  c10::Stream stream;
};

RecordedEvent& event_of(void* event) { return *static_cast<RecordedEvent*>(event); }

c10::DeviceIndex index_of(c10::Device device) {
  const auto index = device.has_index() ? device.index() : t_device;
  TORCH_CHECK(device.type() == kType && index < kDevices, "there is no device ", device);
  return index;
}

c10::Stream stream_of(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
}

class DeviceGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(t_device, index_of(device))};
  }
  c10::Device getDevice() const override { return {kType, t_device}; }
  void setDevice(c10::Device device) const override { t_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) t_device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = index_of(device);
    return stream_of(index, t_streams[static_cast<size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(index_of(device), 1 + static_cast<c10::StreamId>(taken_from_pool++ % kPoolStreams));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream_of(index_of(device), ++last_new_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto index = index_of(stream.device());
    return stream_of(index, std::exchange(t_streams[static_cast<size_t>(index)], stream.id()));
  }
  // Streams run their work at once, so the query succeeds unless something hangs. On a real device success depends on
  // timing, so the query orders nothing.
  bool queryStream(const c10::Stream& stream) const override {
    std::lock_guard lock(device_mutex());
    return Timeline::get().of(stream).is_over();
  }
  void synchronizeStream(const c10::Stream& stream) const override { note_host_wait("waiting for a stream", stream); }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    for (c10::StreamId id = 0; id <= last_new_stream; ++id)
      note_host_wait("waiting for a device", stream_of(index, id));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    std::lock_guard lock(device_mutex());
    Timeline::get().launch(stream);
    if (*event == nullptr) *event = new RecordedEvent{{}, stream};
    event_of(*event) = {Timeline::get().of(stream), stream};
  }
  void block(void* event, const c10::Stream& stream) const override {
    std::lock_guard lock(device_mutex());
    Timeline::get().launch(stream);
    Timeline::get().make_wait(stream, event_of(event).clock);
  }
  bool queryEvent(void* event) const override {
    std::lock_guard lock(device_mutex());
    return event_of(event).clock.is_over();
  }
  void synchronizeEvent(void* event) const override {
    count_host_wait("waiting for an event", event_of(event).stream);
    const VectorClock clock = [&] {
      std::lock_guard lock(device_mutex());
      return event_of(event).clock;
    }();
    wait_for_hangs(clock);
    std::lock_guard lock(device_mutex());
    Timeline::of_this_thread().join(clock);
    HostMemory::get().settle(Timeline::of_this_thread());
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream&) const override { return t_records_graph; }
#endif

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    CachingAllocator::get().record(memory, stream);
  }
};

}  // namespace

const c10::impl::DeviceGuardImplInterface& device_guard() {
  static const auto* guard = new DeviceGuardImpl;  // never destroyed, as LibTorch requires
  return *guard;
}

void pretend_to_record_graph(bool records) { t_records_graph = records; }

}  // namespace fsdp::test::checked
