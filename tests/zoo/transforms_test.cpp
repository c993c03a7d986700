// functorch's transforms, which wrap tensors, inside a scope: over inputs and over parameters.

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

namespace functorch = at::functorch;
// One level of a transform while it lives.
class Level {
 public:
  static Level vmap(int64_t size) {
    return Level(
        functorch::initAndPushDynamicLayer(functorch::TransformType::Vmap, size, functorch::RandomnessType::Error));
  }
  static Level grad() {
    return Level(functorch::initAndPushDynamicLayer(functorch::TransformType::Grad, std::nullopt, std::nullopt,
                                                    /*prev_grad_mode=*/true));
  }
  ~Level() { functorch::popDynamicLayerAndDeleteMetadata(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  Tensor batched(const Tensor& tensor) const { return functorch::makeBatched(tensor, 0, number_); }
  Tensor wrapped(const Tensor& tensor) const { return functorch::makeTensorWrapper(tensor, number_).requires_grad_(); }

 private:
  explicit Level(int64_t number) : number_(number) {}
  int64_t number_;
};

Tensor value_of(const Tensor& batched) { return functorch::unsafeGetBatchedImpl(batched)->value().detach().clone(); }

// Two layers, each a group; `compute` gives a plain tensor.
void expect_same_computed(const std::function<Tensor(nn::LinearImpl& in, nn::LinearImpl& out)>& compute) {
  auto program = program_of<nn::SequentialImpl>([&](nn::SequentialImpl& both, const Role& role) {
    return Values{role.whole(both, [&] { return compute(both.at<nn::LinearImpl>(0), both.at<nn::LinearImpl>(1)); })};
  });
  program.build = [] { return nn::Sequential(nn::Linear(4, 6), nn::Linear(6, 4)).ptr(); };
  program.tolerance = 1e-12;
  expect_equals_unsharded(program);
}

Tensor three_points() { return torch::linspace(-1, 1, 12, torch::kDouble).view({3, 4}); }

TEST(ZooTransforms, VmapOverInputsEqualsTheUnshardedRun) {
  expect_same_computed([](nn::LinearImpl& in, nn::LinearImpl& out) {
    const auto level = Level::vmap(3);
    return value_of(out.forward(torch::tanh(in.forward(level.batched(three_points())))));
  });
}

TEST(ZooTransforms, VmapOverTheRowsOfAParameterEqualsTheUnshardedRun) {
  expect_same_computed([](nn::LinearImpl& in, nn::LinearImpl& out) {
    const auto level = Level::vmap(6);
    const auto row = level.batched(in.weight);
    return value_of(torch::dot(row, three_points()[1]) * out.bias.sum());
  });
}

TEST(ZooTransforms, GradientsOfEachSampleEqualTheUnshardedRun) {
  expect_same_computed([](nn::LinearImpl& in, nn::LinearImpl& out) {
    const auto samples = Level::vmap(3);
    const auto x = samples.batched(three_points());
    Tensor gradient;
    {
      const auto level = Level::grad();
      const auto w = level.wrapped(in.weight);
      const auto loss = out.forward(torch::tanh(torch::mv(w, x))).pow(2).sum();
      gradient = functorch::maybeGetTensorWrapper(torch::autograd::grad({loss}, {w})[0])->value();
    }
    return value_of(gradient);
  });
}

}  // namespace
}  // namespace fsdp::test
