#include <fsdp/device_mesh.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "comm/core/local_communicator.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

TEST(DeviceMesh, OfOneRankHasAnyNumberOfAxes) {
  const auto alone = std::make_shared<ProcessGroup>(make_local_communicator(), 0);
  const auto mesh = init_device_mesh({1, 1, 1}, {"stage", "replicate", "shard"}, alone);
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_THAT(mesh.coordinate(), ElementsAre(0, 0, 0));
  EXPECT_THAT(mesh.ranks(), ElementsAre(0));
  EXPECT_EQ(mesh.process_group("replicate"), alone);
  EXPECT_EQ((mesh[{"shard", "stage"}].ndim()), 2);
}

TEST(DeviceMesh, OfOneRankHasNoRoomForTwo) {
  const auto alone = std::make_shared<ProcessGroup>(make_local_communicator(), 0);
  EXPECT_THROW(init_device_mesh({2}, {"shard"}, alone), UsageError);
}

TEST(DeviceMesh, IsACopyOfAnother) {
  const auto alone = std::make_shared<ProcessGroup>(make_local_communicator(), 0);
  const auto mesh = init_device_mesh({}, {}, alone);
  auto copy = mesh;
  EXPECT_EQ(copy, mesh);
  copy = mesh["shard"];
  EXPECT_EQ(copy.process_group(), alone);
}

TEST(DeviceMesh, NeedsAProcessGroup) { EXPECT_THROW(init_device_mesh(), UsageError); }

}  // namespace
}  // namespace fsdp
