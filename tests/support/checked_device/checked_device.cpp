#include "support/checked_device/checked_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/core/fault_point.h"
#include "support/checked_device/caching_allocator.h"
#include "support/checked_device/device_guard.h"
#include "support/checked_device/host_memory.h"
#include "support/checked_device/operation.h"
#include "support/thread_ranks.h"

namespace fsdp::test::checked {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  at::Device getDeviceFromPtr(void* address) const override { return CachingAllocator::get().device_of(address); }
  bool isPinnedPtr(const void* address) const override { return HostMemory::get().is_pinned(address); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return generators_[static_cast<size_t>(index < 0 ? device_guard().getDevice().index() : index)];
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &HostMemory::caching(); }

 private:
  // Generators are the CPU's, because operators run as CPU kernels.
  const std::vector<at::Generator> generators_ = [] {
    std::vector<at::Generator> generators;
    for (int i = 0; i < kDevices; ++i) generators.push_back(at::make_generator<at::CPUGeneratorImpl>());
    return generators;
  }();
};

}  // namespace

void install() {
  static const bool is_installed = [] {
    c10::register_privateuse1_backend("checked");
    at::RegisterPrivateUse1HooksInterface(new Hooks);  // never destroyed, as LibTorch requires
    static const c10::impl::DeviceGuardImplRegistrar guard(kType, &device_guard());
    c10::SetAllocator(kType, &CachingAllocator::get());
    register_operators();
    on_fault_point = &note_step;
    return true;
  }();
  static_cast<void>(is_installed);
}

c10::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

void CheckedDevice::SetUp() {
  install();
  c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  CachingAllocator::get().forget_uses();
  HostMemory::get().forget_copies();
  take_violations();
  take_host_waits();
  for (int index = 0; index < kDevices; ++index) set_fate(device(index), Fate::kRuns);
}

void CheckedDevice::TearDown() {
  HostMemory::get().forget_copies();
  for (const auto& violation : take_violations())
    if (!looks_itself_) ADD_FAILURE() << violation.text;
}

std::vector<Violation> CheckedDevice::violations() {
  looks_itself_ = true;
  return take_violations();
}

void run_ranks(int ranks, const std::function<void(int rank)>& fn, std::chrono::milliseconds timeout,
               std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>, int rank)> wrap) {
  install();
  CachingAllocator::get().forget_uses();  // forgets the uses of ranks that have ended
  ThreadRanksOptions options;
  options.backend = "gloo";
  options.timeout = timeout;
  options.device_backend = &device_backend_of;
  options.wrap = std::move(wrap);
  run_thread_ranks(
      ranks,
      [&](int rank) {
        const c10::impl::VirtualGuardImpl devices(kType);
        devices.setDevice(device(rank));
        const Label label(c10::str("rank ", rank));
        fn(rank);
      },
      options);
}

}  // namespace fsdp::test::checked
