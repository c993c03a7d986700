// Tests of operators with every kind of signature on parameters: numbers and tensors, lists, several results, elements
// by index, in place. Also tests of functorch's transforms, which wrap tensors, inside a scope.

#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/TensorWrapper.h>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

// Maps inputs of 6 features to 6 features. It gets a view of the middle weight, and a parameter of row numbers.
using Middle = Tensor (*)(const Tensor& h, const Tensor& w, const Tensor& order);

struct Between : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), middle = register_module("middle", nn::Linear(6, 6));
  nn::Linear out = register_module("out", nn::Linear(6, 3));
  Tensor order = register_parameter("order", torch::tensor({3, 1, 0, 5, 4, 2}), /*requires_grad=*/false);
  explicit Between(Middle compute) : compute_(compute) {}
  using nn::Module::to;
  void to(torch::Dtype dtype, bool = false) override {
    for (const auto& layer : children()) layer->to(dtype);  // `order` keeps its own dtype
  }
  Tensor forward(const Tensor& x) {
    const auto h = torch::tanh(in->forward(x));
    return out->forward(compute_(h, middle->weight.t(), order) + middle->bias);
  }

 private:
  Middle compute_;
};

Tensor arithmetic(const Tensor& h, const Tensor& w, const Tensor&) {
  const auto bent =
      torch::where(w > 0, w, w * 0.1) + torch::lerp(w, w * w, 0.3) + torch::pow(1.5, w) + w.clamp_min(0.1);
  const auto copied = w.to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true) + torch::zeros_like(w) + w.triu(1);
  return torch::addmm(w.softmax(0).mean(0), h, bent) + h.mm(copied.roll(1, 0)) +
         torch::cdist(h, w, 2.0) * torch::mse_loss(w, w * 0.5);
}

Tensor reductions(const Tensor& h, const Tensor& w, const Tensor&) {
  return h * w.logsumexp(1) + w.norm(2, 1) + w.var(std::vector<int64_t>{1}, /*unbiased=*/false) + w.prod(0) +
         torch::linalg_vector_norm(w) + w.amax(0) + w.cumsum(1).sum(0);
}

Tensor attention(const Tensor& h, const Tensor& w, const Tensor&) {
  const auto keys = w.unsqueeze(0);
  return torch::scaled_dot_product_attention(h.unsqueeze(0), keys, keys).squeeze(0);
}

Tensor lists(const Tensor& h, const Tensor& w, const Tensor&) {
  const auto stacked = torch::stack({w, torch::cat({w, w}, 1).slice(1, 3, 9)}).sum(0);
  const auto halves = w.chunk(2, 1);
  const auto parts = w.split_with_sizes({1, 5}, 1);
  return h.mm(stacked) + torch::cat({h.mm(halves[1]), h.mm(halves[0])}, 1) + h.mm(torch::hstack({parts[1], parts[0]})) +
         h * w.unbind(1)[2] + torch::einsum("bi,ij->bj", {h, w});
}

Tensor elements(const Tensor& h, const Tensor& w, const Tensor& order) {
  return h.mm(w.index({order}) + w.index_select(1, order) + w.gather(0, order.expand({6, 6}))) + h * w.select(0, 1) +
         w.narrow(0, 2, 1) + w.diagonal() + w.as_strided({6}, {7}) + h.mm(w.masked_fill(w > 0.2, 0.5)) +
         w.index_put({order.slice(0, 0, 3)}, torch::ones({3, 6}, torch::kDouble)).sum(0);
}

Tensor several_results(const Tensor& h, const Tensor& w, const Tensor&) {
  const auto [largest, where_largest] = w.max(1);
  const auto [top, where_top] = w.topk(2, 0);
  const auto [deviation, mean] = torch::std_mean(w, std::vector<int64_t>{1}, /*unbiased=*/false);
  const auto [second, where_second] = w.kthvalue(2, 1);
  return h * largest + top.sum(0) + h * deviation * mean + second;
}

Tensor in_place(const Tensor& h, const Tensor& w, const Tensor&) {
  auto y = h * 1.0;
  y.mul_(w.select(0, 2)).add_(w.select(0, 1), 0.5).addcmul_(h, w.select(0, 3), 0.1).addmm_(h, w);
  return y.clamp_(-3.0, 3.0);
}

AnyProgram through(Middle middle) {
  auto program = program_of<Between>(fitting<Between>(loss_of<Between>, /*steps=*/2));
  program.build = [middle] { return std::make_shared<Between>(middle); };
  return program;
}

class ZooOperatorsOf : public ZooTable {};

TEST_P(ZooOperatorsOf, EqualTheUnshardedRun) { expect_same(); }

INSTANTIATE_TEST_SUITE_P(Kinds, ZooOperatorsOf,
                         testing::Values(ZooCase{"Arithmetic", through(arithmetic)},
                                         ZooCase{"Reductions", through(reductions)},
                                         ZooCase{"Attention", through(attention)}, ZooCase{"Lists", through(lists)},
                                         ZooCase{"Elements", through(elements)},
                                         ZooCase{"SeveralResults", through(several_results)},
                                         ZooCase{"InPlace", through(in_place)}),
                         name_of_case);

namespace functorch = at::functorch;
// As long as it lives, one more level of a transform is active.
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

// Compares two layers, each with a param group of its own. `compute` returns a plain tensor.
void expect_same_computed(const std::function<Tensor(nn::LinearImpl& in, nn::LinearImpl& out)>& compute) {
  auto program = program_of<nn::SequentialImpl>([&](nn::SequentialImpl& both, const Role& role) {
    return Values{role.whole(both, [&] { return compute(both.at<nn::LinearImpl>(0), both.at<nn::LinearImpl>(1)); })};
  });
  program.build = [] { return nn::Sequential(nn::Linear(4, 6), nn::Linear(6, 4)).ptr(); };
  program.tolerance = 1e-12;
  expect_equals_unsharded(program);
}

Tensor three_points() { return torch::linspace(-1, 1, 12, torch::kDouble).view({3, 4}); }

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
