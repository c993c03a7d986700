// Tests that the checked device finds accesses that the host makes too early, to pinned memory and to rows in it, and
// reports nothing in correct code.

#include "support/checked_device/host_memory.h"
#include "checked_device/training.h"
#include "runtime/flat_params.h"

namespace fsdp::test::checked {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class CheckedHostMemory : public CheckedDevice {
 protected:
  static at::Tensor pinned(double value) {
    auto data = HostMemory::get().allocate(4 * sizeof(float));
    c10::Storage storage(c10::Storage::use_byte_size_t(), 4 * sizeof(float), std::move(data));
    return at::empty({0}, at::kFloat).set_(std::move(storage), 0, {4}, {1}).fill_(value);
  }
  static at::Tensor on_device(double value) { return at::full({4}, value, at::device(device(0)).dtype(at::kFloat)); }
  static void wait_for_all() { recorded_on(current_stream_of(0)).synchronize(); }
  static void expect_values(const at::Tensor& tensor, float value) {
    EXPECT_TRUE(at::equal(tensor, at::full({4}, value))) << tensor;
  }
};

TEST_F(CheckedHostMemory, ACopyBesideTheHostIsThereAfterAnEventAndOthersAreWaitedFor) {
  const auto host = pinned(0), blocking = pinned(0), pageable = at::zeros({4});
  host.copy_(on_device(3), /*non_blocking=*/true);
  EXPECT_TRUE(at::isnan(host).all().item<bool>());
  EXPECT_THAT(take_host_waits(), SizeIs(0));
  wait_for_all();
  expect_values(host, 3);
  take_host_waits();
  blocking.copy_(on_device(3));
  pageable.copy_(on_device(3), /*non_blocking=*/true);
  EXPECT_THAT(take_host_waits(), SizeIs(2));
  EXPECT_TRUE(at::equal(blocking, pageable));
}

TEST_F(CheckedHostMemory, AWriteToWhatACopyTakesIsFoundAndOneAfterTheCopyIsRight) {
  for (const bool is_after : {true, false}) {
    const auto host = pinned(1), on = on_device(0);
    on.copy_(host, /*non_blocking=*/true);
    if (is_after) wait_for_all();
    host.add_(1);
    wait_for_all();
    if (is_after) {
      expect_values(on.cpu(), 1);
      EXPECT_THAT(take_violations(), IsEmpty());
    }
  }
  EXPECT_THAT(violations(), ElementsAre(Field(&Violation::text, HasSubstr("copy from the host"))));
}

// The host itself never reads the values.
TEST_F(CheckedHostMemory, ACopyBackThatComesAfterTheCopyBringsTheValuesAndOneBesideItDoesNot) {
  const auto side = new_stream_of(0);
  for (bool is_ordered : {true, false}) {
    const auto host = pinned(0), x = on_device(3), back = on_device(0);
    host.copy_(x, /*non_blocking=*/true);
    if (is_ordered) order(current_stream_of(0), side);
    {
      const c10::StreamGuard guard(side);
      back.copy_(host, /*non_blocking=*/true);
    }
    wait_for_all();
    streams().synchronizeDevice(0);
    EXPECT_EQ(at::equal(back.cpu(), at::full({4}, 3.0F)), is_ordered);
  }
  // `back` was written on another stream than the one on which it was made, and the unordered copy is also a violation.
  violations();
}

TEST_F(CheckedHostMemory, MemoryThatGoesUnderACopyIsFoundButForLibTorchsOwnKind) {
  auto host = at::empty({4}, at::device(at::kCPU).dtype(at::kFloat).pinned_memory(true));
  host.copy_(on_device(3), /*non_blocking=*/true);
  host.reset();
  EXPECT_THAT(violations(), IsEmpty());
  on_device(0).copy_(pinned(1), /*non_blocking=*/true);
  EXPECT_THAT(violations(), ElementsAre(Field(&Violation::fault, Fault::kEarlyFree)));
}

// Tests of the order of copies on which rows in host memory depend.
class CheckedHostRows : public CheckedHostMemory {
 protected:
  void SetUp() override {
    CheckedHostMemory::SetUp();
    const std::vector<layout::Item> items{{{4}, true}};
    rows_.emplace(runtime::FlatForms{{c10::kFloat, c10::kCPU}, {c10::kFloat, device(0)}},
                  layout::plan_planes(items, 1, {4, 4}).front(), 0, std::make_shared<memory::ByteAccount>());
    rows_->keep_on_host(copies_, /*is_pinned=*/true);
    rows_->allocate_shard(nullptr);
    rows_->allocate_whole();
  }
  void TearDown() override {
    rows_.reset();
    CheckedHostMemory::TearDown();
  }
  at::Tensor bring() { return rows_->plane_to_gather().input; }

  std::shared_ptr<runtime::HostCopies> copies_ = std::make_shared<runtime::HostCopies>();
  std::optional<runtime::FlatParams> rows_;
};

TEST_F(CheckedHostRows, GradientsAreReadTooEarlyIfTheHostDoesNotWait) {
  const auto gradient = rows_->allocate_gradient(rows_->rows().form);
  rows_->land(on_device(3), gradient);
  EXPECT_TRUE(at::isnan(gradient.tensor()).all().item<bool>());
  rows_->finish_landing();
  expect_values(gradient.tensor(), 3);
}

TEST_F(CheckedHostRows, RowsThatAreWrittenWhileTheyTravelAreFound) {
  bring();
  rows_->rows().tensor().fill_(2);  // without HostCopies::wait
  copies_->wait();
  EXPECT_THAT(violations(), ElementsAre(Field(&Violation::text, HasSubstr("the host overwrites its source"))));
}

TEST_F(CheckedHostRows, WhatIsBroughtIsReadInOrderAfterOrderRead) {
  const auto side = new_stream_of(0);
  for (const bool is_ordered : {true, false}) {
    order(current_stream_of(0), side);
    at::Tensor slice;
    {
      const c10::StreamGuard guard(side);
      slice = bring();
    }
    if (is_ordered) rows_->order_read();
    slice.sum();
    if (is_ordered) EXPECT_THAT(violations(), IsEmpty());
  }
  EXPECT_THAT(violations(), Not(IsEmpty()));
  copies_->wait();
}

TEST_F(CheckedHostRows, MemoryThatTravelsStaysUntilTheHostHasWaited) {
  rows_->land(bring(), rows_->allocate_gradient(rows_->rows().form));
  rows_.reset();
  EXPECT_THAT(violations(), IsEmpty());
  copies_->wait();
}

}  // namespace
}  // namespace fsdp::test::checked
