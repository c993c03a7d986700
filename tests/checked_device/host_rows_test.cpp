// What rows in host memory need of the order of copies, and errors that are planted in it: the checked device finds
// them.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include "runtime/host_rows.h"
#include "support/checked_device/checked_device.h"

namespace fsdp::test::checked {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

class CheckedHostRows : public CheckedDevice {
 protected:
  static constexpr int64_t kNumel = 8;
  void SetUp() override {
    CheckedDevice::SetUp();
    c10::impl::VirtualGuardImpl(kType).setDevice(device(0));
  }
  memory::FlatPart host_part() { return {{c10::kFloat, c10::kCPU}, kNumel, rows_.allocate(kNumel * sizeof(float))}; }
  static at::Tensor on_device(double value) {
    return at::full({kNumel}, value, at::device(device(0)).dtype(at::kFloat));
  }
  std::shared_ptr<memory::HostCopies> copies_ = std::make_shared<memory::HostCopies>();
  runtime::HostRows rows_{device(0), true, copies_, std::make_shared<memory::ByteAccount>()};
};

TEST_F(CheckedHostRows, GradientsAreReadTooEarlyIfTheHostDoesNotWait) {
  const auto gradient = host_part();
  rows_.land(on_device(3), gradient);
  EXPECT_TRUE(at::isnan(gradient.tensor()).all().item<bool>());
  rows_.finish_landing();
  EXPECT_TRUE(at::equal(gradient.tensor(), at::full({kNumel}, 3.0F)));
}

TEST_F(CheckedHostRows, RowsThatAreWrittenWhileTheyTravelAreFound) {
  const auto rows = host_part();
  rows.tensor().fill_(1);
  const auto slice = on_device(0);
  rows_.bring(rows, slice);
  rows.tensor().fill_(2);  // without HostCopies::wait
  copies_->wait();
  EXPECT_THAT(violations(), ElementsAre(Field(&Violation::text, HasSubstr("the host writes what it takes"))));
}

TEST_F(CheckedHostRows, WhatIsBroughtIsReadInOrderAfterOrderRead) {
  const auto rows = host_part();
  rows.tensor().fill_(1);
  const auto slice = on_device(0);
  const c10::impl::VirtualGuardImpl devices(kType);
  const auto side = devices.getNewStream(device(0), 0);
  const auto read = [&](bool is_ordered) {
    c10::Event made(kType);
    made.record(devices.getStream(device(0)));
    made.block(side);
    {
      const c10::StreamGuard guard(side);
      rows_.bring(rows, slice);
    }
    if (is_ordered) rows_.order_read();
    slice.sum();
  };
  read(true);
  EXPECT_THAT(violations(), testing::IsEmpty());
  read(false);
  EXPECT_THAT(violations(), testing::Not(testing::IsEmpty()));
  copies_->wait();
}

TEST_F(CheckedHostRows, MemoryThatTravelsStaysUntilTheHostHasWaited) {
  {
    const auto rows = host_part(), gradient = host_part();
    rows.tensor().fill_(1);
    const auto slice = on_device(0);
    rows_.bring(rows, slice);
    rows_.land(slice, gradient);
  }
  EXPECT_THAT(violations(), testing::IsEmpty());
  copies_->wait();
}

}  // namespace
}  // namespace fsdp::test::checked
