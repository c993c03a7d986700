// Tests that parts whose tensors are written in place are refused if LibTorch refuses the plain call.

#include "activation/parts.h"

namespace fsdp::test {
namespace {

// Expects that LibTorch refuses the plain call, and that the part is refused with `words`.
template <class Run>
void expect_refused_as_without_a_part(const Run& run, const std::string& words) {
  EXPECT_THROW(run(false), c10::Error);
  expect_refused([&] { run(true); }, words);
}

TEST(ActivationWritten, AResultThatFnWritesAfterAutogradKeptItIsRefusedAsWithoutAPart) {
  const auto x = input(), w = torch::randn({6});
  const auto part = [&](const torch::Tensor& h) {
    auto y = h.exp();
    y.mul_(2);
    return y * w;
  };
  expect_refused_as_without_a_part(
      [&](bool checkpoints) { call(checkpoints, {}, part, x).sum().backward(); },
      "tensor 0 of those that autograd saves for fn, Float[4, 6] on cpu, was written in place");
}

TEST(ActivationWritten, ATensorThatFnCapturesAndIsWrittenBeforeBackwardIsRefusedAsWithoutAPart) {
  auto block = block_of();
  const auto x = input(), scale = torch::rand({6});
  const auto expect_written = [&](const auto& part, const torch::Tensor& captured, const std::string& words) {
    expect_refused_as_without_a_part(
        [&](bool checkpoints) {
          const auto result = call(checkpoints, {}, part, x);
          const torch::NoGradGuard no_grad;
          captured.mul_(2);
          const torch::AutoGradMode with_grad(true);
          result.sum().backward();
        },
        words);
  };
  expect_written([&](const torch::Tensor& h) { return block(h); }, block->in->weight,
                 "Float[6, 19] on cpu, was written in place");
  expect_written([&](const torch::Tensor& h) { return (h * scale).sin(); }, scale,
                 "Float[6] on cpu, was written in place");
}

// The plain call does not need its bias in backward.
TEST(ActivationWritten, AModulesParameterThatIsWrittenBeforeBackwardIsRefusedThoughAutogradNeedNotKeepIt) {
  auto block = block_of();
  const auto result = activation_checkpoint(block, input());
  {
    const torch::NoGradGuard no_grad;
    block->in->bias.mul_(2);
  }
  expect_refused([&] { result.sum().backward(); }, "parameter 'inner.bias' of fn was written in place before backward");
}

TEST(ActivationWritten, AnInputThatIsWrittenIsRefusedAtOnceWhereFnWritesItAndOtherwiseInBackward) {
  auto first = torch::randn({4, 6}), second = torch::randn({4, 6});
  const auto w = torch::randn({6}).requires_grad_();
  expect_refused([&] { return activation_checkpoint([&](const torch::Tensor& h) { return h.add_(1) * w; }, first); },
                 "input tensor 0 of fn was written in place while fn ran");
  const auto result =
      activation_checkpoint([&](const torch::Tensor& a, const torch::Tensor& b) { return a * b * w; }, first, second);
  second.add_(1);
  expect_refused([&] { result.sum().backward(); }, "input tensor 1 of fn was written in place before backward");
}

// The second write does not affect forward's graph, because the tensors that the graph kept are unchanged.
TEST(ActivationWritten, ABufferThatFnSetsAndUsesIsAsItWasForTheGraph) {
  const auto x = input();
  expect_same_either_way([&](bool checkpoints) {
    auto scale = torch::ones({6});
    const auto part = [&scale](const torch::Tensor& h) {
      scale.fill_(2);
      return (h * scale).sin();
    };
    call(checkpoints, {.buffers = {scale}}, part, x).sum().backward();
    return std::vector{std::exchange(x.mutable_grad(), torch::Tensor()), scale};
  });
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
