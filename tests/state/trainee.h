#pragma once
/// \file
/// Functions that tests of checkpoints share, apart from the run that they save.

#include <fsdp/checkpoint.h>
#include <fsdp/deferred_init.h>
#include <fsdp/serialize.h>
#include <fsdp/state_dict.h>
#include <gmock/gmock.h>

#include "support/recorded_ranks.h"
#include "support/saved_run.h"

namespace fsdp::test {

using state::TemporaryFolder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;
using torch::Tensor;

/// Returns the message of the fsdp error that `act` throws, or an empty string if it throws none.
template <class E = Error>
std::string error_of(const auto& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return {};
}

inline void expect_same_values(const std::vector<Tensor>& expected, const std::vector<Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << "tensor " << i;
}

inline void expect_close_values(const std::vector<Tensor>& expected, const std::vector<Tensor>& found,
                                double tolerance) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(torch::allclose(expected[i], found[i], tolerance, tolerance / 100)) << "tensor " << i;
}

/// Returns a net_with_seen that also has a tied weight and a frozen scalar. Nets with different `factor` have different
/// values.
inline std::shared_ptr<SmallNetImpl> tied_net(double factor = 1) {
  return build_alike([=] {
    auto net = std::make_shared<SmallNetImpl>();
    net->register_parameter("scalar", torch::tensor(0.25), /*requires_grad=*/false);
    net->register_parameter("again", net->head->weight);
    net->register_buffer("seen", torch::arange(4));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.mul_(factor);
    net->named_buffers()["seen"].mul_(static_cast<int64_t>(factor));
    return net;
  });
}

/// Says how a run's ranks are sharded.
struct Layout {
  Strategy strategy = Strategy::kFullShard;
  std::vector<int> mesh = {};
  std::optional<c10::ScalarType> param_dtype = std::nullopt;

  /// Returns the options that shard a run with this layout. Collective.
  FullyShardOptions options() const {
    FullyShardOptions options{.strategy = strategy};
    if (param_dtype) options.mp_policy = MixedPrecisionPolicy{.param_dtype = param_dtype};
    if (!mesh.empty()) options.mesh = init_device_mesh(mesh, {"replicate", "shard"});
    return options;
  }
  std::string text() const { return c10::str(strategy, ", a mesh of ", mesh.size(), " axes"); }
};

/// Runs `act` on thread ranks, each with its own SavedRun.
inline void run_ranks(int world, const std::function<void(SavedRun&)>& act, const ThreadRanksOptions& options = {}) {
  run_thread_ranks(
      world,
      [&](int) {
        SavedRun run(FullyShardOptions{});
        act(run);
      },
      options);
}

}  // namespace fsdp::test
