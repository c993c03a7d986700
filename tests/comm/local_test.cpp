#include "comm/core/front.h"

#include <torch/torch.h>

#include "comm/frame.h"
#include "support/collective_cases.h"

namespace fsdp::test {
namespace {

TEST(LocalCommunicator, MovesEverythingAsTheOthersDo) { check_collectives(*make_local_communicator()); }

TEST(LocalCommunicator, HasMemoryOfItsOwnAndNobodyToSendTo) {
  const auto communicator = make_local_communicator();
  const auto memory = communicator->share(100, at::kCPU, {});
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 64, 0u);
  EXPECT_EQ(static_cast<const char*>(memory->data())[99], 0);
  EXPECT_THROW((void)communicator->send(at::zeros({1}), 0, {}), UsageError);
}

}  // namespace
}  // namespace fsdp::test
