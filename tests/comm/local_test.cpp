#include "comm/core/local_communicator.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>

#include "comm/frame.h"

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

TEST(LocalCommunicator, KeepsItsOwnVotesAndMemoryAndHasNobodyToSendTo) {
  const auto communicator = make_local_communicator();
  const auto work = communicator->barrier({"", {1, 0, 1}});
  work->wait();
  EXPECT_TRUE(std::ranges::equal(work->votes(), std::array{1, 0, 1}));
  const auto memory = communicator->share(100, at::kCPU, {});
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
  EXPECT_EQ(static_cast<const char*>(memory->data())[99], 0);
  EXPECT_THROW((void)communicator->send(at::zeros({1}), 0, {}), UsageError);
}

}  // namespace
}  // namespace fsdp::test
