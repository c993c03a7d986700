#pragma once
/// \file
/// Devices, streams and events of the checked device, where LibTorch asks for them.

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace fsdp::test::checked {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Each thread has a current device and, for each device, a current stream, as with CUDA. Streams run what they are
/// given at once, so an event is over when it is recorded; the order is kept by Timeline.
class DeviceGuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  /// Ranks that are threads have one each.
  static constexpr c10::DeviceIndex kDevices = 4;

  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device exchangeDevice(c10::Device device) const override;
  c10::Device getDevice() const override;
  void setDevice(c10::Device device) const override;
  void uncheckedSetDevice(c10::Device device) const noexcept override;

  c10::Stream getStream(c10::Device device) const override;
  c10::Stream getDefaultStream(c10::Device device) const override;
  /// One of 32 in turn.
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high_priority) const override;
  c10::Stream getNewStream(c10::Device device, int priority) const override;
  c10::Stream exchangeStream(c10::Stream stream) const override;
  bool queryStream(const c10::Stream& stream) const override;
  void synchronizeStream(const c10::Stream& stream) const override;
  void synchronizeDevice(c10::DeviceIndex index) const override;

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex index, c10::EventFlag flag) const override;
  void block(void* event, const c10::Stream& stream) const override;
  bool queryEvent(void* event) const override;
  void synchronizeEvent(void* event) const override;
  void destroyEvent(void* event, c10::DeviceIndex index) const noexcept override;

  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override;
};

}  // namespace fsdp::test::checked
