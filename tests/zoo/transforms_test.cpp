// functorch's transforms, which wrap tensors, inside a scope: over inputs and over parameters.

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
namespace functorch = at::functorch;
using torch::Tensor;

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
void expect_same_sharded(const std::function<Tensor(nn::LinearImpl& in, nn::LinearImpl& out)>& compute) {
  torch::manual_seed(3);
  nn::Linear in(4, 6), out(6, 4);
  in->to(torch::kDouble);
  out->to(torch::kDouble);
  const auto expected = compute(*in, *out);
  const auto copies = [&](const nn::Linear& linear) {
    return std::dynamic_pointer_cast<nn::LinearImpl>(linear->clone());
  };
  for (int world : worlds_up_to(3)) {
    std::vector<std::shared_ptr<nn::LinearImpl>> ins, outs;
    for (int r = 0; r < world; ++r) {
      ins.push_back(copies(in));
      outs.push_back(copies(out));
    }
    run_thread_ranks(world, [&](int r) {
      nn::Sequential both(ins[static_cast<size_t>(r)], outs[static_cast<size_t>(r)]);
      fully_shard(*ins[static_cast<size_t>(r)]);
      fully_shard(*outs[static_cast<size_t>(r)]);
      const auto model = fully_shard(both);
      const ForwardScope scope(model);
      EXPECT_LT(relative_difference(expected, compute(*ins[static_cast<size_t>(r)], *outs[static_cast<size_t>(r)])),
                1e-12);
    });
  }
}

Tensor three_points() { return torch::linspace(-1, 1, 12, torch::kDouble).view({3, 4}); }

TEST(ZooTransforms, VmapOverInputsEqualsTheUnshardedRun) {
  expect_same_sharded([](nn::LinearImpl& in, nn::LinearImpl& out) {
    const auto level = Level::vmap(3);
    return value_of(out.forward(torch::tanh(in.forward(level.batched(three_points())))));
  });
}

TEST(ZooTransforms, VmapOverTheRowsOfAParameterEqualsTheUnshardedRun) {
  expect_same_sharded([](nn::LinearImpl& in, nn::LinearImpl& out) {
    const auto level = Level::vmap(6);
    const auto row = level.batched(in.weight);
    return value_of(torch::dot(row, three_points()[1]) * out.bias.sum());
  });
}

TEST(ZooTransforms, GradientsOfEachSampleEqualTheUnshardedRun) {
  expect_same_sharded([](nn::LinearImpl& in, nn::LinearImpl& out) {
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
