// Outside a scope a sharded parameter is this rank's rows: what would compute something else on them is refused.

#include <torch/script.h>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kScope = "fsdp::ForwardScope";

TEST(OutsideAScope, TheModelsForwardIsRefused) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THAT(message_of([&] { t.net.forward(small_ids(share(1))); }),
                AllOf(refuses("aten::embedding", "words.weight", kScope),
                      HasSubstr("as in a forward scope, sizes [7, 4], found this rank's rows ")));
  });
}

TEST(OutsideAScope, EvaluationIsRefusedThoughNothingIsRecorded) {
  expect_training_survives([](const InTraining& t) {
    torch::NoGradGuard no_grad;
    t.net.eval();
    EXPECT_THAT(message_of([&] { t.net.forward(small_ids(share(1))); }),
                refuses("aten::embedding", "words.weight", kScope));
    c10::InferenceMode inference;
    EXPECT_THAT(message_of([&] { t.net.forward(small_ids(share(1))); }),
                refuses("aten::embedding", "words.weight", kScope));
  });
}

TEST(OutsideAScope, FunctionsOnAWeightAreRefused) {
  expect_training_survives([](const InTraining& t) {
    auto x = torch::ones({2, 4}, torch::kDouble);
    for (bool recorded : {true, false}) {
      at::AutoGradMode mode(recorded);
      EXPECT_THAT(message_of([&] { torch::linear(x, t.net.up->weight, t.net.up->bias); }),
                  refuses("aten::linear", "up.weight", kScope));
      EXPECT_THAT(message_of([&] { F::linear(x, t.net.up->weight, t.net.up->bias); }), HasSubstr("parameter 'up."));
      EXPECT_THAT(message_of([&] { x.matmul(t.net.up->weight.t()); }), HasSubstr("'up.weight'"));
      EXPECT_THAT(message_of([&] { F::embedding(torch::zeros({2}, torch::kLong), t.net.words->weight); }),
                  refuses("aten::embedding", "words.weight", kScope));
      EXPECT_THAT(message_of([&] { torch::layer_norm(x, {4}, t.net.norm->weight, t.net.norm->bias); }),
                  refuses("aten::layer_norm", "norm.weight", kScope));
      EXPECT_THAT(message_of([&] { x* t.net.norm->weight; }), refuses("aten::mul", "norm.weight", kScope));
    }
    EXPECT_THAT(message_of([&] { t.net.norm->weight * 2; }), refuses("aten::mul", "norm.weight", "torch::NoGradGuard"));
  });
}

// A ready-made module is refused outside a scope and right inside.
template <class Holder, class... Inputs>
void expect_needs_a_scope(const std::function<Holder()>& build, const std::string& operation,
                          const std::string& parameter, const Inputs&... inputs) {
  torch::manual_seed(3);
  std::vector<Holder> modules{build(), build(), build()};
  for (auto& module : modules) {
    module->to(torch::kDouble);
    torch::NoGradGuard no_grad;
    for (auto& p : module->parameters()) p.copy_(torch::linspace(-1, 1, p.numel(), torch::kDouble).view(p.sizes()));
  }
  auto first = [](const auto& result) {
    if constexpr (std::is_same_v<std::decay_t<decltype(result)>, torch::Tensor>)
      return result;
    else
      return std::get<0>(result);
  };
  auto expected = first(modules[2]->forward(inputs...));
  run_thread_ranks(2, [&](int r) {
    auto model = fully_shard(modules[static_cast<size_t>(r)]);
    EXPECT_THAT(message_of([&] { model->forward(inputs...); }),
                AllOf(refuses(operation, parameter, kScope), HasSubstr("model.forward(...)"),
                      HasSubstr("model->forward(...) opens no scope"), HasSubstr("fsdp::handle_of(module)")));
    EXPECT_LT(relative_difference(expected.detach(), first(model(inputs...)).detach()), 1e-12);
  });
}

TEST(OutsideAScope, ReadyMadeModulesAreRefusedAndRightThroughTheirHandle) {
  auto sequence = torch::linspace(-1, 1, 24, torch::kDouble).view({3, 2, 4});
  auto image = torch::linspace(-1, 1, 100, torch::kDouble).view({1, 4, 5, 5});
  expect_needs_a_scope<nn::Conv2d>([] { return nn::Conv2d(4, 3, 3); }, "aten::conv2d", "weight", image);
  expect_needs_a_scope<nn::BatchNorm2d>([] { return nn::BatchNorm2d(4); }, "aten::batch_norm", "weight", image);
  expect_needs_a_scope<nn::LSTM>([] { return nn::LSTM(4, 5); }, "aten::lstm", "weight_ih_l0", sequence);
  expect_needs_a_scope<nn::GRU>([] { return nn::GRU(4, 5); }, "aten::gru", "weight_ih_l0", sequence);
}

TEST(OutsideAScope, TorchsClippingIsRefusedAndNamesOurs) {
  expect_training_survives([](const InTraining& t) {
    for (double norm_type : {2.0, 1.0, std::numeric_limits<double>::infinity()})
      EXPECT_THAT(message_of([&] { nn::utils::clip_grad_norm_(t.net.parameters(), 1e-3, norm_type); }),
                  AllOf(HasSubstr("the gradient of parameter '"), HasSubstr("fsdp::clip_grad_norm_"),
                        HasSubstr(c10::str("[fsdp rank ", rank(), "/2] aten::"))))
          << norm_type;
  });
}

TEST(OutsideAScope, LbfgsIsRefused) {
  expect_training_survives([](const InTraining& t) {
    torch::optim::LBFGS lbfgs(t.net.parameters(), torch::optim::LBFGSOptions(0.1));
    auto closure = [&] {
      lbfgs.zero_grad();
      torch::Tensor loss;
      {
        ForwardScope scope(t.group);
        loss = small_loss(t.net, share(0));
      }
      loss.backward();
      return loss;
    };
    EXPECT_THAT(message_of([&] { lbfgs.step(closure); }),
                AllOf(HasSubstr("aten::cat: the gradient of parameter '"), HasSubstr("fsdp::LocalRows")));
  });
}

TEST(OutsideAScope, NormsAndDotProductsOfRowsAreRefused) {
  expect_training_survives([](const InTraining& t) {
    auto p = t.net.up->weight;
    for (const auto& act :
         std::vector<std::function<void()>>{[&] { p.norm(); },
                                            [&] { p.data().norm(); },
                                            [&] { p.detach().norm(); },
                                            [&] { torch::linalg_vector_norm(p.detach(), 2); },
                                            [&] { torch::_foreach_norm({p.data()}); },
                                            [&] { torch::_foreach_norm({p}); },
                                            [&] { torch::_foreach_max({p.data()}); },
                                            [&] { torch::_foreach_powsum({p.data()}, 2); },
                                            [&] { p.data().sum(); },
                                            [&] { p.data().mean(); },
                                            [&] { p.data().max(); },
                                            [&] { p.data().argmax(); },
                                            [&] { p.data().std(); },
                                            [&] { p.data().view(-1).dot(p.data().view(-1)); },
                                            [&] { p.data().t().matmul(p.data()); },
                                            [&] { torch::cat({p.data(), p.data()}); },
                                            [&] { p.data().cumsum(0); },
                                            [&] { p.data().softmax(0); },
                                            [&] { p.data().sort(0); },
                                            [&] { torch::equal(p.data(), p.data()); },
                                            [&] { torch::allclose(p.data(), p.data()); },
                                            [&] { p.data()[0][0].item(); },
                                            [&] { p.data().index_select(0, torch::zeros({1}, torch::kLong)); }})
      EXPECT_THAT(message_of(act),
                  AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] aten::")), HasSubstr("parameter 'up.weight'"),
                        HasSubstr("fsdp::full_tensor"), HasSubstr("fsdp::LocalRows")));
  });
}

TEST(OutsideAScope, RandomInitialisationIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto p = t.net.up->weight;
    for (const auto& act : std::vector<std::function<void()>>{
             [&] { nn::init::normal_(p); }, [&] { nn::init::uniform_(p); }, [&] { nn::init::xavier_normal_(p); },
             [&] { nn::init::xavier_uniform_(p); }, [&] { nn::init::kaiming_normal_(p); },
             [&] { nn::init::kaiming_uniform_(p); }, [&] { nn::init::sparse_(p, 0.5); },
             [&] { p.data().bernoulli_(0.5); }, [&] { p.data().exponential_(); }, [&] { p.data().random_(); },
             [&] { torch::dropout(p.data(), 0.5, true); }, [&] { torch::bernoulli(p.data()); },
             [&] { torch::rand_like(p); }, [&] { torch::randn_like(p.data()); }, [&] { torch::randint_like(p, 9); }})
      EXPECT_THAT(message_of(act),
                  AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] aten::")), HasSubstr("parameter 'up.weight'"),
                        HasSubstr("every rank would draw"), HasSubstr("fsdp::initialize")));
  });
}

TEST(OutsideAScope, ResettingAModulesParametersIsRefused) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THAT(message_of([&] { t.net.up->reset_parameters(); }),
                refuses("aten::uniform_", "up.weight", "fsdp::initialize"));
    EXPECT_THAT(message_of([&] { t.net.words->reset_parameters(); }),
                refuses("aten::normal_", "words.weight", "fsdp::initialize"));
  });
}

TEST(OutsideAScope, InitialisationByGlobalRowNumbersIsRefused) {
  run_thread_ranks(2, [](int) {
    nn::Linear square(nn::LinearOptions(4, 4).bias(false));
    nn::Conv1d conv(nn::Conv1dOptions(4, 4, 3).bias(false));
    {
      torch::NoGradGuard no_grad;
      square->weight.fill_(0.5);
      conv->weight.fill_(0.5);
    }
    auto model = fully_shard(square);
    auto conv_model = fully_shard(conv);
    EXPECT_THAT(message_of([&] { nn::init::eye_(square->weight); }), HasSubstr("'weight'"));
    EXPECT_THAT(message_of([&] { nn::init::orthogonal_(square->weight); }), HasSubstr("'weight'"));
    EXPECT_TRUE(full_tensor(square->weight).eq(0.5).all().item<bool>());
    EXPECT_THAT(message_of([&] { nn::init::dirac_(conv->weight); }), HasSubstr("'weight'"));
    torch::NoGradGuard no_grad;
    EXPECT_THAT(message_of([&] { square->weight[0].fill_(1); }), HasSubstr("'weight'"));
    EXPECT_THAT(message_of([&] { square->weight.narrow(0, 0, 1).copy_(torch::ones({1, 4})); }), HasSubstr("'weight'"));
    LocalRows rows(model);
    square->weight[0].fill_(1);
  });
}

// p[0] is another row on every rank.
TEST(OutsideAScope, ComputingWithOneOfTheRowsIsRefused) {
  expect_training_survives([](const InTraining& t) {
    torch::NoGradGuard no_grad;
    auto p = t.net.up->weight;
    EXPECT_THAT(message_of([&] { p[0] * 2; }), refuses("aten::select", "up.weight", "fsdp::full_tensor"));
    EXPECT_THAT(message_of([&] { p.slice(0, 0, 1) + 1; }), refuses("aten::slice", "up.weight", "fsdp::full_tensor"));
    EXPECT_THAT(message_of([&] { t.net.up->weight.grad()[0] * 2; }),
                HasSubstr("the gradient of parameter 'up.weight'"));
    LocalRows rows(t.group);
    EXPECT_EQ((p[0] * 2).size(0), 4);
  });
}

// A slice that ends behind this rank's rows has all of them, and is another one on every rank.
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
                                                       [&] { p.narrow(0, 0, 1).fill_(1); },
                                                       [&] { p.split(1)[0].zero_(); },
                                                       [&] { p.chunk(1)[0].zero_(); },
                                                       [&] { p.unbind()[0].zero_(); },
                                                       [&] { p.tensor_split(1)[0].zero_(); },
                                                       [&] { p.index_put_({torch::indexing::Slice(1, rows)}, 0.0); },
                                                       [&] { p.t().select(1, 0).clone(); },
                                                       [&] { p.unsqueeze(0).select(1, 0).clone(); },
                                                       [&] { p.as_strided({1, 4}, {4, 1}).zero_(); }};
      for (size_t i = 0; i < takings.size(); ++i)
        EXPECT_THAT(message_of(takings[i]), AllOf(HasSubstr("parameter 'weight'"), HasSubstr("fsdp::LocalRows")))
            << "taking " << i << " of " << rows << " rows";
      EXPECT_TRUE(torch::equal(full_tensor(p), before));
      // Columns are the same on every rank.
      EXPECT_EQ(p.slice(1, 0, 2).size(1), 2);
      EXPECT_EQ(p.chunk(2, -1)[1].size(1), 2);
      EXPECT_EQ(p.unfold(1, 2, 1).size(1), 3);
      EXPECT_EQ(p.narrow(1, torch::tensor(1), 2).size(1), 2);  // through the stack
      LocalRows open(group);
      p[0].fill_(1);
    });
}

TEST(OutsideAScope, ListsOfWholeTensorsWrittenFromRowsAreRefused) {
  run_thread_ranks(2, [&](int) {
    auto linear = build_alike([] { return nn::Linear(nn::LinearOptions(4, 2).bias(false)); });
    fully_shard(linear);
    torch::NoGradGuard no_grad;
    auto p = linear->weight, whole = torch::zeros({2, 4});
    std::vector<torch::Tensor> wholes{whole}, parameters{p};
    EXPECT_THAT(message_of([&] { at::_foreach_copy_(wholes, parameters); }),
                refuses("aten::_foreach_copy_", "weight", "fsdp::full_tensor"));
    EXPECT_THAT(message_of([&] { at::_foreach_lerp_(wholes, parameters, 0.5); }),
                refuses("aten::_foreach_lerp_", "weight", "fsdp::full_tensor"));
    EXPECT_TRUE(whole.eq(0).all().item<bool>());
    std::vector<torch::Tensor> rows{torch::zeros_like(p)};
    at::_foreach_lerp_(rows, parameters, 0.5);
    EXPECT_TRUE(torch::equal(rows[0], p.detach() * 0.5));
  });
}

// With one row on each rank the rows would be broadcast to the whole tensor without a word.
TEST(OutsideAScope, CopiesOfRowsIntoWholeTensorsAreRefused) {
  for (int rows : {2, 6})
    run_thread_ranks(2, [&](int) {
      auto linear = build_alike([&] { return nn::Linear(nn::LinearOptions(4, rows).bias(false)); });
      fully_shard(linear);
      auto p = linear->weight;
      torch::NoGradGuard no_grad;
      auto whole = torch::zeros({rows, 4});
      EXPECT_THAT(message_of([&] { whole.copy_(p); }), refuses("aten::copy_", "weight", "fsdp::full_tensor"));
      EXPECT_TRUE(whole.eq(0).all().item<bool>());
      EXPECT_EQ(whole.to(p.detach()).size(0), rows) << "takes the type only";
      whole.copy_(full_tensor(p));
      EXPECT_FALSE(whole.eq(0).any().item<bool>());
    });
}

TEST(OutsideAScope, AScriptModulesForwardIsRefusedByItsOptimisedGraphToo) {
  run_thread_ranks(2, [](int r) {
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
        // TorchScript throws an exception of its own.
        EXPECT_THAT(message_of<c10::Error>([&] {
                      try {
                        module.forward(inputs);
                      } catch (const std::exception& error) {
                        throw Error(error.what());
                      }
                    }),
                    AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] aten::")), HasSubstr("parameter 'weight'"),
                          HasSubstr(kScope)));
      }
    }
  });
}

TEST(FullTensor, OfAGradientIsTheGradientAndOfAViewIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto p = t.net.up->weight;
    EXPECT_TRUE(torch::equal(full_tensor(p.grad()), full_grad(p)));
    EXPECT_FALSE(torch::equal(full_tensor(p.grad()), full_tensor(p)));
    EXPECT_TRUE(torch::equal(full_tensor(p.detach()), full_tensor(p)));
    torch::NoGradGuard no_grad;
    auto where = c10::str("[fsdp rank ", rank(), "/2] full_tensor: expected parameter 'up.weight'");
    EXPECT_THAT(message_of([&] { full_tensor(p.slice(1, 0, 1)); }),
                AllOf(HasSubstr(where), HasSubstr("found a view of sizes"), HasSubstr("view of the result")));
    EXPECT_THAT(message_of([&] { full_tensor(p.t()); }), HasSubstr(where));
    ForwardScope scope(t.group);
    EXPECT_EQ(full_tensor(p).size(0), 6);
    EXPECT_THAT(message_of([&] { full_tensor(p.t()); }), HasSubstr(where));
  });
}

TEST(FullTensor, OfAnUndefinedTensorIsRefused) {
  EXPECT_THAT(message_of([] { full_tensor({}); }), HasSubstr("fsdp::full_tensor: expected a parameter"));
  EXPECT_THAT(message_of([] { full_grad({}); }), HasSubstr("fsdp::full_grad: expected a parameter"));
  EXPECT_THAT(message_of([] { global_sizes({}); }), HasSubstr("fsdp::global_sizes: expected a parameter"));
  EXPECT_THAT(message_of([] { local_rows({}); }), HasSubstr("fsdp::local_rows: expected a parameter"));
  EXPECT_THAT(message_of([] { placement_of({}); }), HasSubstr("fsdp::placement_of: expected a parameter"));
}

TEST(FullGrad, OfAGradientWithOtherSizesThanTheRowsIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto p = t.net.up->weight;
    auto gradient = p.grad();
    p.mutable_grad() = torch::ones({1, 1}, torch::kDouble);
    EXPECT_THAT(message_of([&] { full_grad(p); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] full_grad: parameter 'up.weight'")),
                      HasSubstr("expected the sizes of this rank's rows"), HasSubstr("found [1, 1]")));
    // Columns first: the values count, not how they lie in memory.
    p.mutable_grad() = gradient.detach().clone().t().contiguous().t();
    auto columns_first = full_grad(p);
    p.mutable_grad() = gradient;
    EXPECT_TRUE(torch::equal(columns_first, full_grad(p)));
  });
}

TEST(OutsideAScope, WhatMeansTheSameOnRowsPasses) {
  run_thread_ranks(2, [](int) {
    nn::Linear linear(nn::LinearOptions(3, 4).bias(false));
    {
      torch::NoGradGuard no_grad;
      linear->weight.fill_(0.5);
    }
    auto model = fully_shard(linear);
    auto p = linear->weight;
    torch::NoGradGuard no_grad;
    EXPECT_EQ(p.numel(), local_rows(p).count * 3);
    nn::init::constant_(p, 2);
    p.mul_(2).add_(p).clamp_max_(7.5);
    torch::_foreach_mul_({p}, 2.0);
    p.copy_(p.detach().clone().sub(1));
    p.view(-1).add_(torch::ones_like(p).view(-1));
    EXPECT_TRUE((p * p).defined());
    EXPECT_TRUE(full_tensor(p).eq(15).all().item<bool>());
    nn::init::zeros_(p);
    EXPECT_TRUE(full_tensor(p).eq(0).all().item<bool>());
  });
}

TEST(OutsideAScope, LocalRowsLiftsIt) {
  expect_training_survives([](const InTraining& t) {
    LocalRows rows(t.group);
    torch::NoGradGuard no_grad;
    auto p = t.net.up->weight;
    auto squares = p.square().sum().reshape({1});
    default_process_group()->communicator().all_reduce(squares, ReduceOp::kSum, {"squares", {}})->wait();
    EXPECT_NEAR(squares.item<double>(), full_tensor(p).square().sum().item<double>(), 1e-12);
    EXPECT_GE(p.norm().item<double>(), 0);
  });
}

}  // namespace
}  // namespace fsdp::test
