// Tests which parts of a model apply_activation_checkpointing recomputes, and that everything else stays as it was.

#include <fsdp/apply_activation_checkpointing.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>

#include <atomic>
#include <sstream>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

std::atomic<int> runs_of_part = 0;  // of all ranks, which are threads

struct CountedPartImpl : torch::nn::Module {
  torch::nn::Linear layer{6, 6};
  CountedPartImpl() { register_module("layer", layer); }
  std::shared_ptr<Module> clone(const std::optional<at::Device>& = std::nullopt) const override {
    return std::make_shared<CountedPartImpl>();
  }
  torch::Tensor forward(torch::Tensor x) {
    ++runs_of_part;
    return torch::tanh(layer(x));
  }
};

struct PartsImpl : torch::nn::Module {
  torch::nn::Sequential parts{std::make_shared<CountedPartImpl>(), torch::nn::Dropout(0.5),
                              std::make_shared<CountedPartImpl>()};
  PartsImpl() { register_module("parts", parts); }
  torch::Tensor forward(const torch::Tensor& x) { return parts->forward(x); }
};

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream text;
  text << module;
  for (const auto& parameter : module.named_parameters()) text << parameter.key() << '\n';
  return text.str();
}

TEST(ApplyActivationCheckpointing, ChildrenOfASequentialAreComputedAgainAndTheModelStaysAsItWas) {
  torch::manual_seed(1);
  PartsImpl net;
  const auto x = torch::randn({4, 6}).requires_grad_();
  const auto run = [&] {
    runs_of_part = 0;
    torch::manual_seed(2);
    net.forward(x).square().sum().backward();
    return std::exchange(x.mutable_grad(), torch::Tensor());
  };
  const auto text = text_of(net);
  const auto expected = run();
  EXPECT_EQ(runs_of_part, 2);
  EXPECT_EQ(apply_activation_checkpointing<CountedPartImpl>(net), 2);
  EXPECT_TRUE(torch::equal(run(), expected));
  EXPECT_EQ(runs_of_part, 4);
  EXPECT_EQ(text_of(net), text);
  EXPECT_EQ(&net.parts->at<CountedPartImpl>(0), net.parts->ptr(0).get());
  EXPECT_EQ(apply_activation_checkpointing<CountedPartImpl>(net), 2) << "again";
  EXPECT_TRUE(torch::equal(run(), expected));
  EXPECT_EQ(runs_of_part, 4);
  net.zero_grad();
  runs_of_part = 0;
  std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net.parts->clone())->forward(x).sum().backward();
  EXPECT_EQ(runs_of_part, 4) << "so is a clone";
  EXPECT_FALSE(net.parameters()[0].grad().defined());
}

TEST(ApplyActivationCheckpointing, WhatTheModelCallsItselfIsRefusedByName) {
  SmallNetImpl net;
  EXPECT_THAT([&] { apply_activation_checkpointing<SmallBlockImpl>(net); },
              testing::ThrowsMessage<UsageError>(testing::HasSubstr("'blocks.0'")))
      << "a ModuleList calls nothing";
  EXPECT_THROW(apply_activation_checkpointing<torch::nn::Conv2dImpl>(net), UsageError) << "there is none";
}

TEST(ApplyActivationCheckpointing, ShardedBeforeOrAfterTheBitsAreThoseOfThePlainSteps) {
  const auto training = [](int when) {
    Training<PartsImpl> parts;
    parts.build = [] { return std::make_shared<PartsImpl>(); };
    parts.shard = [when](PartsImpl& net) {
      net.eval();  // makes the net draw nothing, because thread ranks share the random state
      if (when == 1) apply_activation_checkpointing<CountedPartImpl>(net);
      for (const auto& part : net.parts->children())
        if (part->as<CountedPartImpl>() != nullptr) fully_shard(*part);
      const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
      if (when == 2) apply_activation_checkpointing<CountedPartImpl>(net);
      return group;
    };
    parts.loss = [](PartsImpl& net, const Batch& batch) {
      return net.forward(samples(batch, {6}, torch::kDouble)).square().mean();
    };
    return parts;
  };
  const auto expected = train_on_thread_ranks(training(0), 2);
  for (int when : {1, 2}) expect_same_bits(expected, train_on_thread_ranks(training(when), 2));
}

}  // namespace
}  // namespace fsdp::test
