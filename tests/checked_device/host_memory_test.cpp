// The checked device finds what the host does too early with pinned memory, and nothing in what is right.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include "support/checked_device/checked_device.h"
#include "support/checked_device/host_memory.h"

namespace fsdp::test::checked {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::SizeIs;

class CheckedHostMemory : public CheckedDevice {
 protected:
  void SetUp() override {
    CheckedDevice::SetUp();
    c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  }

  static at::Tensor pinned(double value) {
    auto data = HostMemory::get().allocate(4 * sizeof(float));
    c10::Storage storage(c10::Storage::use_byte_size_t(), 4 * sizeof(float), std::move(data));
    return at::empty({0}, at::kFloat).set_(std::move(storage), 0, {4}, {1}).fill_(value);
  }
  static at::Tensor on_device(double value) { return at::full({4}, value, at::device(device(0)).dtype(at::kFloat)); }
  static void wait_for_all() {
    c10::Event event(kType);
    event.record(c10::impl::VirtualGuardImpl(kType).getStream(device(0)));
    event.synchronize();
  }
};

TEST_F(CheckedHostMemory, ACopyBesideTheHostIsThereAfterAnEvent) {
  const auto host = pinned(0);
  host.copy_(on_device(3), /*non_blocking=*/true);
  EXPECT_TRUE(at::isnan(host).all().item<bool>());
  EXPECT_THAT(take_host_waits(), SizeIs(0));
  wait_for_all();
  EXPECT_TRUE(at::equal(host, at::full({4}, 3.0F)));
}

TEST_F(CheckedHostMemory, OtherCopiesAreWaitedFor) {
  const auto blocking = pinned(0), pageable = at::zeros({4});
  blocking.copy_(on_device(3));
  pageable.copy_(on_device(3), /*non_blocking=*/true);
  EXPECT_THAT(take_host_waits(), SizeIs(2));
  EXPECT_TRUE(at::equal(blocking, pageable));
}

TEST_F(CheckedHostMemory, AWriteToWhatACopyTakesIsFound) {
  const auto host = pinned(1), on = on_device(0);
  on.copy_(host, /*non_blocking=*/true);
  host.add_(1);
  wait_for_all();
  EXPECT_THAT(violations(), ElementsAre(Field(&Violation::text, HasSubstr("copy from the host"))));
}

TEST_F(CheckedHostMemory, AWriteAfterTheCopyIsRight) {
  const auto host = pinned(1), on = on_device(0);
  on.copy_(host, /*non_blocking=*/true);
  wait_for_all();
  host.add_(1);
  EXPECT_TRUE(at::equal(on.cpu(), at::ones({4})));
}

// It never was for the host to read.
TEST_F(CheckedHostMemory, ACopyBackThatComesAfterTheCopyBringsTheValuesAndOneBesideItDoesNot) {
  const auto side = c10::impl::VirtualGuardImpl(kType).getNewStream(device(0), 0);
  for (bool is_ordered : {true, false}) {
    const auto host = pinned(0), x = on_device(3), back = on_device(0);
    c10::Event copied(kType);
    host.copy_(x, /*non_blocking=*/true);
    copied.record(c10::impl::VirtualGuardImpl(kType).getStream(device(0)));
    if (is_ordered) copied.block(side);
    {
      const c10::StreamGuard guard(side);
      back.copy_(host, /*non_blocking=*/true);
    }
    wait_for_all();
    c10::impl::VirtualGuardImpl(kType).synchronizeDevice(0);
    EXPECT_EQ(at::equal(back.cpu(), at::full({4}, 3.0F)), is_ordered);
  }
  violations();  // `back` was written on another stream than it was made on, and the copy beside it
}

TEST_F(CheckedHostMemory, MemoryOfLibTorchsOwnKindMayGoUnderACopy) {
  auto host = at::empty({4}, at::device(at::kCPU).dtype(at::kFloat).pinned_memory(true));
  host.copy_(on_device(3), /*non_blocking=*/true);
  host.reset();
}

TEST_F(CheckedHostMemory, MemoryThatGoesUnderACopyIsFound) {
  on_device(0).copy_(pinned(1), /*non_blocking=*/true);
  EXPECT_THAT(violations(), ElementsAre(Field(&Violation::fault, Fault::kEarlyFree)));
}

}  // namespace
}  // namespace fsdp::test::checked
