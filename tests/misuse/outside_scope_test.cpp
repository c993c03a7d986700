// Tests of operators on a parameter outside a scope, where it is this rank's rows. Operators that would compute
// something else on rows are refused.

#include <torch/script.h>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr const char* kScope = "fsdp::ForwardScope";
constexpr const char* kFull = "fsdp::full_tensor";

Tensor x() { return torch::ones({2, 4}, torch::kDouble); }
Tensor zero_ids(int64_t count) { return torch::zeros({count}, torch::kLong); }

TEST(OutsideAScope, WhatNeedsWholeParametersIsRefused) {
  expect_refused({
      {kInTraining,
       {"@aten::embedding: ", "'words.weight'", kScope, "as in a forward scope, sizes [7, 4], found this rank's rows "},
       {[](auto& t) { t.net.forward(small_ids(share(1))); },
        [](auto& t) {
          c10::InferenceMode inference;
          t.net.forward(small_ids(share(1)));
        },
        [](auto& t) { torch::embedding(t.net.words->weight, zero_ids(2)); }}},
      {kInTraining, refusal("aten::linear", "up.weight", kScope), {[](auto& t) {
         torch::linear(x(), t.p, t.net.up->bias);
       }}},
      {kInTraining, {"parameter 'up.weight'"}, {[](auto& t) { x().matmul(t.p.t()); }}},
      {kInTraining, refusal("aten::layer_norm", "norm.weight", kScope), {[](auto& t) {
         torch::layer_norm(x(), {4}, t.net.norm->weight, t.net.norm->bias);
       }}},
      {kInTraining, refusal("aten::mul", "norm.weight", kScope), {[](auto& t) { x() * t.net.norm->weight; }}},
      {kOutside, refusal("aten::mul", "norm.weight", "torch::NoGradGuard"), {[](auto& t) { t.net.norm->weight * 2; }}},
      {kInTraining, refusal("aten::uniform_", "up.weight", "fsdp::initialize"), {[](auto& t) {
         t.net.up->reset_parameters();
       }}},
      {kInTraining, refusal("aten::normal_", "words.weight", "fsdp::initialize"), {[](auto& t) {
         t.net.words->reset_parameters();
       }}},
      {kInTraining,
       {"@aten::", "the gradient of parameter '", "fsdp::clip_grad_norm_"},
       {[](auto& t) { nn::utils::clip_grad_norm_(t.net.parameters(), 1e-3, 2.0); },
        [](auto& t) { nn::utils::clip_grad_norm_(t.net.parameters(), 1e-3, 1.0); }}},
      {kInTraining,
       {"@aten::max", "the result of an operator on the rows of parameter '", "fsdp::clip_grad_norm_"},
       {[](auto& t) { nn::utils::clip_grad_norm_(t.net.parameters(), 1e-3, INFINITY); }}},
      // p[0] is a different row on every rank.
      {kOutsideUnrecorded, refusal("aten::select", "up.weight", "a different row on every rank"), {[](auto& t) {
         t.p[0] * 2;
       }}},
      {kOutsideUnrecorded, refusal("aten::slice", "up.weight", kFull), {[](auto& t) { t.p.slice(0, 0, 1) + 1; }}},
      {kOutsideUnrecorded, {"the gradient of parameter 'up.weight'"}, {[](auto& t) { t.p.grad()[0] * 2; }}},
  });
}

// tests/zoo shows that ready-made modules give the right results when they are called through their handles.
TEST(OutsideAScope, WhatComputesOnRowsOrDrawsNumbersForThemIsRefused) {
  const Mistake lbfgs{kOutside, {"aten::cat: the gradient of parameter '", "fsdp::LocalRows"}, {[](auto& t) {
                        torch::optim::LBFGS lbfgs(t.net.parameters(), torch::optim::LBFGSOptions(0.1));
                        lbfgs.step([&] {
                          lbfgs.zero_grad();
                          auto loss = t.loss();
                          loss.backward();
                          return loss;
                        });
                      }}};
  const Mistake norms_and_products{
      kOutside,
      {"@aten::", "parameter 'up.weight'", kFull, "fsdp::LocalRows"},
      {[](auto& t) { t.p.norm(); }, [](auto& t) { t.p.detach().norm(); },
       [](auto& t) { torch::linalg_vector_norm(t.p.detach(), 2); }, [](auto& t) { torch::_foreach_norm({t.p.data()}); },
       [](auto& t) { torch::_foreach_norm({t.p}); }, [](auto& t) { torch::_foreach_max({t.p.data()}); },
       [](auto& t) { t.p.data().sum(); }, [](auto& t) { t.p.data().argmax(); },
       [](auto& t) { t.p.data().view(-1).dot(t.p.data().view(-1)); },
       [](auto& t) { t.p.data().t().matmul(t.p.data()); }, [](auto& t) { torch::cat({t.p.data(), t.p.data()}); },
       [](auto& t) { t.p.data().cumsum(0); }, [](auto& t) { t.p.data().sort(0); },
       [](auto& t) { torch::equal(t.p.data(), t.p.data()); }, [](auto& t) { t.p.data()[0][0].item(); },
       [](auto& t) { t.p.data().index_select(0, zero_ids(1)); }}};
  const Mistake random_numbers{
      kOutside,
      {"@aten::", "parameter 'up.weight'", "every rank would draw", "fsdp::initialize"},
      {[](auto& t) { nn::init::normal_(t.p); }, [](auto& t) { nn::init::uniform_(t.p); },
       [](auto& t) { nn::init::xavier_normal_(t.p); }, [](auto& t) { nn::init::kaiming_uniform_(t.p); },
       [](auto& t) { nn::init::sparse_(t.p, 0.5); }, [](auto& t) { t.p.data().bernoulli_(0.5); },
       [](auto& t) { t.p.data().exponential_(); }, [](auto& t) { t.p.data().random_(); },
       [](auto& t) { torch::dropout(t.p.data(), 0.5, true); }, [](auto& t) { torch::bernoulli(t.p.data()); },
       [](auto& t) { torch::rand_like(t.p); }, [](auto& t) { torch::randn_like(t.p.data()); },
       [](auto& t) { torch::randint_like(t.p, 9); }}};
  const Mistake row_numbers{
      kOutside, {"'up.weight'"}, {[](auto& t) { nn::init::eye_(t.p); }, [](auto& t) { nn::init::orthogonal_(t.p); }}};
  const auto forward_of = [](const auto& build, const torch::Tensor& input) {
    return [=](auto&) {
      auto model = build_alike(build);
      fully_shard(*model);
      model->forward(input);
    };
  };
  const auto conv = [] { return nn::Conv2d(4, 3, 3); };
  const auto lstm = [] { return nn::LSTM(4, 5); };
  const Words opens_no_scope{"model.forward(...)", "model->forward(...) opens no scope", "fsdp::handle_of(module)"};
  // Thread ranks share one random generator. Cases that draw from it therefore come after those whose ranks build equal
  // models.
  expect_refused({lbfgs,
                  norms_and_products,
                  {kOutside, opens_no_scope, {forward_of([] { return nn::Linear(4, 5); }, torch::ones({2, 4}))}},
                  {kOutside, refusal("aten::conv2d", "weight", kScope), {forward_of(conv, torch::ones({1, 4, 5, 5}))}},
                  {kOutside, refusal("aten::lstm", "weight_ih_l0", kScope), {forward_of(lstm, torch::ones({3, 2, 4}))}},
                  {kOutside, {"'weight'"}, {[](auto&) {
                     auto filter = build_alike([] { return nn::Conv1d(4, 4, 3); });
                     fully_shard(*filter);
                     nn::init::dirac_(filter->weight);
                   }}},
                  row_numbers,
                  random_numbers});
}

// A slice that ends beyond this rank's rows would contain all of them, and would differ between ranks.
TEST(OutsideAScope, TakingRowsByTheirNumbersIsRefused) {
  for (int rows : {2, 8})
    run_thread_ranks(2, [&](int) {
      auto linear = build_alike([&] { return nn::Linear(nn::LinearOptions(4, rows).bias(false)); });
      auto group = fully_shard(linear);
      auto p = linear->weight;
      torch::NoGradGuard no_grad;
      const auto before = full_tensor(p);
      const std::vector<std::function<void()>> takings{[&] { p.slice(0, 0, rows - 1).zero_(); },
                                                       [&] { p.slice(-2, 0, rows - 1).clone(); },
                                                       [&] { p[0].zero_(); },
                                                       [&] { p.narrow(0, 0, 1).copy_(torch::ones({1, 4})); },
                                                       [&] { p.split(1)[0].zero_(); },
                                                       [&] { p.unbind()[0].zero_(); },
                                                       [&] { p.index_put_({torch::indexing::Slice(1, rows)}, 0.0); },
                                                       [&] { p.t().select(1, 0).clone(); },
                                                       [&] { p.unsqueeze(0).select(1, 0).clone(); },
                                                       [&] { p.as_strided({1, 4}, {4, 1}).zero_(); }};
      for (size_t i = 0; i < takings.size(); ++i) {
        SCOPED_TRACE(c10::str("taking ", i, " of ", rows, " rows"));
        expect_error(takings[i], {"parameter 'weight'", "fsdp::LocalRows"});
      }
      EXPECT_TRUE(torch::equal(full_tensor(p), before));
      // Columns are the same on every rank.
      EXPECT_EQ(p.slice(1, 0, 2).size(1), 2);
      EXPECT_EQ(p.chunk(2, -1)[1].size(1), 2);
      EXPECT_EQ(p.unfold(1, 2, 1).size(1), 3);
      EXPECT_EQ(p.narrow(1, torch::tensor(1), 2).size(1), 2);  // an overload whose start is a tensor
      LocalRows open(group);
      EXPECT_EQ((p[0] * 2).size(0), 4);
      p[0].fill_(1);
    });
}

TEST(OutsideAScope, AScriptModulesForwardIsRefusedByItsOptimisedGraphToo) {
  run_thread_ranks(2, [](int) {
    torch::jit::Module module("Affine");
    module.register_parameter("weight", torch::ones({4, 4}).requires_grad_(), /*is_buffer=*/false);
    module.register_parameter("bias", torch::ones({4}).requires_grad_(), /*is_buffer=*/false);
    module.define("def forward(self, x):\n  return torch.relu(x @ self.weight + self.bias) * 2 + self.bias\n");
    auto model = fully_shard(module);
    const std::vector<torch::jit::IValue> inputs{torch::ones({2, 4})};
    for (int again = 0; again < 4; ++again) {
      model(inputs).toTensor().sum().backward();
      for (bool recorded : {true, false}) {
        at::AutoGradMode mode(recorded);
        const auto forward = [&] {
          try {
            module.forward(inputs);
          } catch (const std::exception& error) {  // TorchScript throws its own exception type.
            throw Error(error.what());
          }
        };
        expect_error<c10::Error>(forward, {"@aten::", "parameter 'weight'", kScope});
      }
    }
  });
}

TEST(FullTensor, OfAGradientIsTheGradientAndOfAViewIsRefused) {
  expect_training_survives([](const InTraining& t) {
    const auto& p = t.p;
    EXPECT_TRUE(torch::equal(full_tensor(p.grad()), full_grad(p)));
    EXPECT_FALSE(torch::equal(full_tensor(p.grad()), full_tensor(p)));
    EXPECT_TRUE(torch::equal(full_tensor(p.detach()), full_tensor(p)));
    torch::NoGradGuard no_grad;
    const std::string expected = "@full_tensor: expected parameter 'up.weight'";
    expect_error([&] { return full_tensor(p.slice(1, 0, 1)); },
                 {expected, "found a view of sizes", "view of the result"});
    expect_error([&] { return full_tensor(p.t()); }, {expected});
    ForwardScope scope(t.group);
    EXPECT_EQ(full_tensor(p).size(0), 6);
    expect_error([&] { return full_tensor(p.t()); }, {expected});
  });
}

TEST(FullTensor, OfAnUndefinedTensorIsRefused) {
  expect_error([] { return full_tensor({}); }, {"fsdp::full_tensor: expected a parameter"});
  expect_error([] { return full_grad({}); }, {"fsdp::full_grad: expected a parameter"});
  expect_error([] { return global_sizes({}); }, {"fsdp::global_sizes: expected a parameter"});
  expect_error([] { return local_rows({}); }, {"fsdp::local_rows: expected a parameter"});
  expect_error([] { return placement_of({}); }, {"fsdp::placement_of: expected a parameter"});
}

TEST(FullGrad, OfAGradientWithOtherSizesThanTheRowsIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto gradient = t.p.grad();
    t.p.mutable_grad() = torch::ones({1, 1}, torch::kDouble);
    expect_error([&] { return full_grad(t.p); },
                 {"@full_grad: parameter 'up.weight'", "expected the sizes of this rank's rows", "found [1, 1]"});
    // The gradient is laid out columns first. Only its values matter, not its strides.
    t.p.mutable_grad() = plain_copy(gradient).t().contiguous().t();
    auto columns_first = full_grad(t.p);
    t.p.mutable_grad() = gradient;
    EXPECT_TRUE(torch::equal(columns_first, full_grad(t.p)));
  });
}

}  // namespace
}  // namespace fsdp::test
