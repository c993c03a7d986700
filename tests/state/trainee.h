#pragma once
/// \file
/// What the tests of checkpoints train, save and load, and what they compare.

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
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;
using torch::Tensor;

/// The error of fsdp's that `act` throws, as text; empty if there is none.
template <class E = Error>
std::string error_of(const auto& act) {
  try {
    act();
  } catch (const E& error) {
    return error.what_without_backtrace();
  }
  return {};
}

/// Whole parameters, sharded or not, then buffers. Collective if they are sharded.
inline std::vector<Tensor> whole_values(const torch::nn::Module& module) {
  std::vector<Tensor> values;
  for (const auto& parameter : module.parameters()) values.push_back(full_tensor(parameter));
  for (const auto& buffer : module.buffers()) values.push_back(buffer.clone());
  return values;
}

inline void expect_same_values(const std::vector<Tensor>& expected, const std::vector<Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << "tensor " << i;
}

/// A SmallNet with a buffer.
inline std::shared_ptr<SmallNetImpl> net_with_seen() {
  auto net = std::make_shared<SmallNetImpl>();
  net->register_buffer("seen", torch::ones({4}));
  return net;
}

/// The same with a tied weight and a frozen scalar; `factor` tells one's values from another's.
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

using MakeOptimizer = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<Tensor>);

template <class Optimizer>
std::unique_ptr<torch::optim::Optimizer> made(const std::vector<Tensor>& parameters, const auto&... options) {
  return std::make_unique<Optimizer>(parameters, options...);
}

inline std::unique_ptr<torch::optim::Optimizer> amsgrad(std::vector<Tensor> parameters) {
  return made<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2).amsgrad(true));
}

/// A net and its optimizer: a rank's, or those of a program without ranks.
struct Trainee {
  std::shared_ptr<SmallNetImpl> net = build_alike(net_with_seen);
  std::optional<Group> group;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  explicit Trainee(MakeOptimizer make = amsgrad) {
    net->to(torch::kDouble);
    optimizer = make(net->parameters());
  }
  explicit Trainee(const FullyShardOptions& options, MakeOptimizer make = amsgrad,
                   c10::ScalarType dtype = torch::kDouble) {
    net->to(dtype);
    group = shard_blocks(*net, options);
    optimizer = make(net->parameters());
  }

  /// A program without ranks trains on the batches of `ranks` ranks.
  void step(int number, int ranks = 1) {
    optimizer->zero_grad();
    Tensor loss;
    {
      std::optional<ForwardScope> scope;
      if (group) scope.emplace(*group);
      loss = small_net_loss(*net, group ? Batch{number, rank() * 2, 2} : Batch{number, 0, 2 * ranks});
    }
    loss.backward();
    optimizer->step();
    net->named_buffers()["seen"].add_(1);
  }
  void save(const std::string& folder, const SaveOptions& options = {}) const {
    save_checkpoint(folder, *group, optimizer.get(), options);
  }
  LoadedCheckpoint load(const std::string& folder, const LoadOptions& options = {}) {
    return group ? load_checkpoint(folder, *group, optimizer.get(), options)
                 : load_checkpoint(folder, *net, optimizer.get(), options);
  }
  std::vector<Tensor> values() const { return whole_values(*net); }
  /// This rank's rows of parameters, buffers and optimizer state.
  std::vector<StateEntry> rows() const {
    auto all = group ? state_dict(*group) : state_dict(*net);
    auto more = group ? state_dict(*optimizer, *group) : state_dict(*optimizer, *net);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

}  // namespace fsdp::test
