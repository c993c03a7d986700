// Operators of every kind of signature on parameters: numbers and tensors, lists, several results, elements by number,
// in place. They take a view of a weight, so that no node of theirs leads straight to it.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// (inputs of 6 features, a view of the middle weight) to 6 features.
using Middle = std::function<Tensor(const Tensor& h, const Tensor& w)>;

struct Between : nn::Module {
  nn::Linear in{4, 6}, middle{6, 6}, out{6, 3};
  explicit Between(Middle compute) : compute_(std::move(compute)) {
    register_module("in", in);
    register_module("middle", middle);
    register_module("out", out);
  }
  Tensor forward(const Tensor& x) {
    const auto h = torch::tanh(in->forward(x));
    return out->forward(compute_(h, middle->weight.t()) + middle->bias);
  }

 private:
  Middle compute_;
};

Tensor arithmetic(const Tensor& h, const Tensor& w) {
  const auto bent =
      torch::where(w > 0, w, w * 0.1) + torch::lerp(w, w * w, 0.3) + torch::pow(1.5, w) + w.clamp_min(0.1);
  const auto copied = w.to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true) + torch::zeros_like(w) + w.triu(1);
  return torch::addmm(w.softmax(0).mean(0), h, bent) + h.mm(copied.roll(1, 0)) +
         torch::cdist(h, w, 2.0) * torch::mse_loss(w, w * 0.5);
}

Tensor reductions(const Tensor& h, const Tensor& w) {
  return h * w.logsumexp(1) + w.norm(2, 1) + w.var(std::vector<int64_t>{1}, /*unbiased=*/false) + w.prod(0) +
         torch::linalg_vector_norm(w) + w.amax(0) + w.cumsum(1).sum(0);
}

Tensor attention(const Tensor& h, const Tensor& w) {
  const auto keys = w.unsqueeze(0);
  return torch::scaled_dot_product_attention(h.unsqueeze(0), keys, keys).squeeze(0);
}

Tensor lists(const Tensor& h, const Tensor& w) {
  const auto stacked = torch::stack({w, torch::cat({w, w * 2}, 1).slice(1, 3, 9)}).sum(0);
  const auto halves = w.chunk(2, 1);
  const auto parts = w.split_with_sizes({1, 5}, 1);
  return h.mm(stacked) + torch::cat({h.mm(halves[1]), h.mm(halves[0])}, 1) + h.mm(torch::hstack({parts[1], parts[0]})) +
         h * w.unbind(1)[2] + torch::einsum("bi,ij->bj", {h, w});
}

Tensor elements(const Tensor& h, const Tensor& w) {
  const auto order = torch::tensor({3, 1, 0, 5, 4, 2});
  return h.mm(w.index({order}) + w.index_select(1, order) + w.gather(0, order.expand({6, 6}))) + h * w.select(0, 1) +
         w.narrow(0, 2, 1) + w.diagonal() + w.as_strided({6}, {7}) + h.mm(w.masked_fill(w > 0.2, 0.5)) +
         w.index_put({order.slice(0, 0, 3)}, torch::ones({3, 6}, torch::kDouble)).sum(0);
}

Tensor several_results(const Tensor& h, const Tensor& w) {
  const auto [largest, where_largest] = w.max(1);
  const auto [top, where_top] = w.topk(2, 0);
  const auto [deviation, mean] = torch::std_mean(w, std::vector<int64_t>{1}, /*unbiased=*/false);
  const auto [smallest, greatest] = torch::aminmax(w);
  return h * largest + top.sum(0) + h * deviation * mean + smallest - greatest;
}

Tensor in_place(const Tensor& h, const Tensor& w) {
  auto y = h * 1.0;
  y.mul_(w.select(0, 2)).add_(w.select(0, 1), 0.5).addcmul_(h, w.select(0, 3), 0.1).addmm_(h, w);
  return y.clamp_(-3.0, 3.0);
}

struct Kind {
  const char* name;
  Tensor (*compute)(const Tensor& h, const Tensor& w);
};

class ZooOperators : public testing::TestWithParam<Kind> {};

TEST_P(ZooOperators, EqualTheUnshardedRun) {
  auto program = regression<Between>([] { return std::make_shared<Between>(GetParam().compute); },
                                     [](Between& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  program.shard = shard_children_then_root;
  expect_equals_unsharded(program, worlds_up_to(3));
}

INSTANTIATE_TEST_SUITE_P(OfEveryKind, ZooOperators,
                         testing::Values(Kind{"Arithmetic", arithmetic}, Kind{"Reductions", reductions},
                                         Kind{"Attention", attention}, Kind{"Lists", lists}, Kind{"Elements", elements},
                                         Kind{"SeveralResults", several_results}, Kind{"InPlace", in_place}),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace fsdp::test
