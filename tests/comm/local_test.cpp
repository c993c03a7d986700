#include "comm/core/local_communicator.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <array>

#include "comm/error_of.h"

namespace fsdp::test {
namespace {

TEST(LocalCommunicator, CopiesWhatItGathersAndReduces) {
  constexpr std::array<int64_t, 2> kWhole{0, 5};
  const auto communicator = make_local_communicator();
  const at::Tensor input = at::arange(5.0), output = at::zeros({5});
  communicator->all_gather(output, input, kWhole, {})->wait();
  EXPECT_TRUE(output.equal(input));
  output.zero_();
  communicator->reduce_scatter(output, input, kWhole, {})->wait();
  EXPECT_TRUE(output.equal(input));
  communicator->all_gather(output, output, kWhole, {})->wait();
  EXPECT_TRUE(output.equal(input));
}

TEST(LocalCommunicator, KeepsItsOwnVotes) {
  const auto work = make_local_communicator()->barrier({"", {1, 0, 1}});
  work->wait();
  EXPECT_EQ(std::vector<uint8_t>(work->votes().begin(), work->votes().end()), (std::vector<uint8_t>{1, 0, 1}));
}

TEST(LocalCommunicator, SharesMemoryThatIsAligned) {
  const auto memory = make_local_communicator()->share(100, at::kCPU, {});
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
  EXPECT_EQ(static_cast<const char*>(memory->data())[99], 0);
}

TEST(LocalCommunicator, HasNobodyToSendTo) {
  EXPECT_THROW((void)make_local_communicator()->send(at::zeros({1}), 0, {}), UsageError);
}

}  // namespace
}  // namespace fsdp::test
