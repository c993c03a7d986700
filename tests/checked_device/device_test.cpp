// Tests that the checked device finds planted errors, and reports nothing in correct code.

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>

#include "checked_device/training.h"

namespace fsdp::test::checked {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

at::Tensor ones(int64_t numel = 4, int index = 0) {
  return at::ones({numel}, at::TensorOptions().device(device(index)));
}

class CheckedDeviceStreams : public CheckedDevice {
 protected:
  void SetUp() override {
    CheckedDevice::SetUp();
    own.emplace(current_stream_of(0));
    side.emplace(new_stream_of(0));
    third.emplace(new_stream_of(0));
  }

  static void on(const c10::Stream& stream, const std::function<void()>& act) {
    const c10::StreamGuard guard(stream);
    act();
  }
  // Returns a tensor of the caller's stream that another stream has written, in order.
  at::Tensor written_aside() const {
    auto tensor = ones();
    order(*own, *side);
    on(*side, [&] { tensor.mul_(2); });
    return tensor;
  }
  static testing::Matcher<std::vector<Violation>> one(Fault fault, const std::string& first, const std::string& then) {
    return ElementsAre(AllOf(Field(&Violation::fault, fault), Field(&Violation::text, HasSubstr(first)),
                             Field(&Violation::text, HasSubstr(then))));
  }
  void expect_right(const char* what, const std::function<void()>& act) {
    CachingAllocator::get().forget_uses();
    act();
    EXPECT_THAT(violations(), IsEmpty()) << what;
  }

  std::optional<c10::Stream> own, side, third;
};

TEST_F(CheckedDeviceStreams, WhatIsRightIsNoViolation) {
  expect_right("order goes on through a third stream", [&] {
    const auto tensor = ones();
    order(*own, *third);
    order(*third, *side);
    on(*side, [&] { tensor.add_(1); });
    order(*side, *own);
  });
  expect_right("other bytes of a block", [&] {
    const auto tensor = ones(16), matrix = ones(16).view({4, 4});
    for (const auto& [mine, others] : {std::pair(tensor.narrow(0, 0, 8), tensor.narrow(0, 8, 8)),
                                       std::pair(matrix.narrow(1, 0, 2), matrix.narrow(1, 2, 2))}) {
      order(*own, *side);
      mine.mul_(2);
      on(*side, [&, others = others] { others.mul_(3); });
      order(*side, *own);
    }
  });
  expect_right("a free once the stream of the tensor has waited", [&] {
    auto tensor = written_aside();
    order(*side, *own);
    tensor.reset();
  });
  expect_right("a free of memory that a recorded stream holds back, and its next use", [&] {
    auto tensor = written_aside();
    const void* address = tensor.const_data_ptr();
    streams().recordDataPtrOnStream(tensor.storage().data_ptr(), *side);
    tensor.reset();
    EXPECT_EQ(ones().const_data_ptr(), address);
  });
  expect_right("the same for a stream that the recorded one waited for", [&] {
    auto tensor = written_aside();
    order(*side, *third);
    streams().recordDataPtrOnStream(tensor.storage().data_ptr(), *third);
    tensor.reset();
    ones();
  });
  expect_right("the memory of another stream is not handed out", [&] {
    const void* address = ones().const_data_ptr();
    on(*side, [&] { EXPECT_NE(ones().const_data_ptr(), address); });
  });
}

TEST_F(CheckedDeviceStreams, PlantedErrorsAreFoundAndNameBothPlaces) {
  at::Tensor tensor;  // kept, so that it is not also freed too early
  const auto read_aside = [&] { on(*side, [&] { static_cast<void>(tensor + 1); }); };
  const auto begin = [&] {
    CachingAllocator::get().forget_uses();
    tensor = ones();
  };
  begin();
  {
    const Label label("producer");
    tensor.mul_(2);
  }
  {
    const Label label("consumer");
    read_aside();
  }
  EXPECT_THAT(violations(), one(Fault::kUnordered, "on stream 0 of checked:0, in 'producer'", "then aten::add"));

  begin();
  order(*own, *side);
  tensor.mul_(2);  // runs after the event
  read_aside();
  EXPECT_THAT(violations(), one(Fault::kUnordered, "aten::mul", "aten::add"));

  begin();
  std::thread([&] { streams().synchronizeStream(*own); }).join();  // gives no order to other threads
  read_aside();
  EXPECT_THAT(violations(), one(Fault::kUnordered, "fill_", "aten::add"));

  begin();
  c10::DataPtr memory;
  {
    const c10::DeviceGuard guard(device(1));
    tensor.zero_();  // before most other operators, LibTorch itself makes the device current
    memory = c10::GetAllocator(kType)->allocate(64);
  }
  EXPECT_THAT(violations(), one(Fault::kWrongDevice, "checked:1 is the current device", "aten::zero_"));
  const auto options = at::TensorOptions().device(device(0));
  at::for_blob(memory.get(), {16}).options(options).target_device(device(0)).make_tensor().zero_();
  EXPECT_THAT(violations(), one(Fault::kWrongDevice, "allocation on stream 0 of checked:1", "zero_"));
}

TEST_F(CheckedDeviceStreams, AnEarlyFreeIsFoundAndThenAReuseOfTheMemory) {
  auto tensor = written_aside();
  const void* address = tensor.const_data_ptr();
  {
    const Label label("dropping");
    tensor.reset();
  }
  EXPECT_THAT(violations(),
              one(Fault::kEarlyFree, "aten::mul", "then given back on stream 0 of checked:0, in 'dropping'"));
  const Label label("again");
  ASSERT_EQ(ones().const_data_ptr(), address) << "the stream has its block back at once";
  EXPECT_THAT(violations(), one(Fault::kReuse, "aten::mul", "from allocation on stream 0 of checked:0, in 'again'"));
}

TEST_F(CheckedDeviceStreams, MemoryComesFullOfNan) {
  EXPECT_TRUE(at::isnan(at::empty({3}, ones().options())).all().item<bool>());
}

TEST_F(CheckedDeviceStreams, WaitsOfTheHostOrderAndCount) {
  const auto tensor = ones();
  EXPECT_THAT(take_host_waits(), IsEmpty());
  streams().synchronizeStream(*own);
  EXPECT_THAT(take_host_waits(), ElementsAre(HasSubstr("waiting for a stream on stream 0")));
  on(*side, [&] { EXPECT_EQ(tensor.sum().item<double>(), 4); });
  EXPECT_THAT(take_host_waits(), ElementsAre(HasSubstr("_local_scalar_dense")));
  EXPECT_EQ(tensor.cpu().numel(), 4);
  EXPECT_THAT(take_host_waits(), ElementsAre(HasSubstr("copy to the host")));
}

// Runs `fn` with the backend alone on two ranks. Each rank is a thread with its own device.
void with_two_backends(const std::function<void(c10d::Backend&, int rank)>& fn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto backend = [&](int rank) {
    return make_checked_backend(*store, rank, 2, std::chrono::seconds(60), device(rank));
  };
  const std::array backends{backend(0), backend(1)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      streams().setDevice(device(rank));
      fn(*backends[rank], rank);
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(CheckedDeviceStreams, UsesWhileACollectiveIsUnderWayAreFoundAndAWaitWithATimeoutMakesTheHostWait) {
  with_two_backends([](c10d::Backend& backend, int rank) {
    std::vector<at::Tensor> tensors{ones(4, rank)};
    backend.allreduce(tensors, {})->wait(std::chrono::seconds(1));
  });
  EXPECT_THAT(take_host_waits(), SizeIs(2));
  with_two_backends([](c10d::Backend& backend, int rank) {
    std::vector<at::Tensor> tensors{ones(4, rank)};
    if (rank == 1) return void(backend.recv(tensors, 0, 0)->wait());
    const auto work = backend.send(tensors, 1, 0);
    tensors[0].mul_(2);  // runs before work->wait()
    work->wait();
  });
  EXPECT_THAT(violations(), one(Fault::kUnordered, "send on stream", "then aten::mul"));
  with_two_backends([](c10d::Backend& backend, int rank) {
    std::vector<at::Tensor> tensors{ones(4, rank)};
    const auto work = backend.allreduce(tensors, {});
    static_cast<void>(tensors[0] + rank);
    work->wait();
  });
  EXPECT_THAT(violations(), SizeIs(2));
}

}  // namespace
}  // namespace fsdp::test::checked
