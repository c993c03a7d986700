// Parts whose tensors are written in place: refused where LibTorch refuses the plain call.

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "activation/parts.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;

TEST(ActivationWritten, AResultThatFnWritesAfterAutogradKeptItIsRefusedAsWithoutAPart) {
  const auto x = input(), w = torch::randn({6});
  const auto part = [&](const torch::Tensor& h) {
    auto y = h.exp();
    y.mul_(2);
    return y * w;
  };
  EXPECT_THROW(part(x).sum().backward(), c10::Error);
  EXPECT_THAT(error_of([&] { activation_checkpoint(part, x).sum().backward(); }),
              HasSubstr("tensor 0 of those that autograd keeps of it, Float[4, 6] on cpu, written in place since"));
}

TEST(ActivationWritten, AParameterThatIsWrittenBeforeBackwardIsRefusedAsWithoutAPart) {
  auto block = block_of();
  const auto x = input();
  const auto part = [&](const torch::Tensor& h) { return block(h); };
  const auto run = [&](bool checkpoints) {
    const auto result = checkpoints ? activation_checkpoint(part, x) : part(x);
    {
      const torch::NoGradGuard no_grad;
      block->in->weight.mul_(2);
    }
    result.sum().backward();
  };
  EXPECT_THROW(run(false), c10::Error);
  EXPECT_THAT(error_of([&] { run(true); }), HasSubstr("Float[6, 19] on cpu, written in place since"));
}

// The plain call can do without its bias in backward.
TEST(ActivationWritten, AModulesParameterThatIsWrittenBeforeBackwardIsRefusedThoughAutogradNeedNotKeepIt) {
  auto block = block_of();
  const auto x = input();
  const auto result = activation_checkpoint(block, x);
  {
    const torch::NoGradGuard no_grad;
    block->in->bias.mul_(2);
  }
  EXPECT_THAT(error_of([&] { result.sum().backward(); }),
              HasSubstr("found 'inner.bias' written in place before backward"));
}

TEST(ActivationWritten, ATensorThatFnCapturesAndIsWrittenBeforeBackwardIsRefusedAsWithoutAPart) {
  const auto x = input();
  auto scale = torch::rand({6});
  const auto run = [&](bool checkpoints) {
    const auto part = [&](const torch::Tensor& h) { return (h * scale).sin(); };
    const auto result = checkpoints ? activation_checkpoint(part, x) : part(x);
    scale.add_(1);
    result.sum().backward();
  };
  EXPECT_THROW(run(false), c10::Error);
  EXPECT_THAT(error_of([&] { run(true); }), HasSubstr("Float[6] on cpu, written in place since"));
}

// For the graph of forward the second write is none: what it kept is as it was.
TEST(ActivationWritten, ABufferThatFnSetsAndUsesIsAsItWasForTheGraph) {
  const auto x = input();
  const auto run = [&](bool checkpoints) {
    auto scale = torch::ones({6});
    const auto part = [&scale](const torch::Tensor& h) {
      scale.fill_(2);
      return (h * scale).sin();
    };
    const CheckpointOptions options{.buffers = {scale}};
    (checkpoints ? activation_checkpoint(options, part, x) : part(x)).sum().backward();
    return std::vector{std::exchange(x.mutable_grad(), torch::Tensor()), scale};
  };
  expect_equal_bits(run(false), run(true));
}

TEST(ActivationWritten, ABufferThatIsOfAnotherSizeInTheSecondRunIsAnExceptionAndOthersAreAsTheyWere) {
  const auto x = input();
  const std::vector<torch::Tensor> buffers{torch::ones({6}), torch::ones({6}), torch::ones({6})};
  int calls = 0;
  const auto part = [&](const torch::Tensor& h) {
    if (++calls == 2) {
      buffers[0].add_(1), buffers[2].add_(1);
      buffers[1].resize_({3});
    }
    return h.sin();
  };
  const auto result = activation_checkpoint({.buffers = buffers}, part, x);
  EXPECT_THROW(result.sum().backward(), c10::Error);
  EXPECT_TRUE(torch::equal(buffers[0], torch::ones({6})));
  EXPECT_TRUE(torch::equal(buffers[2], torch::ones({6})));
}

}  // namespace
}  // namespace fsdp::test
