// Inside a scope the whole parameter is a copy that may be without memory: writes, saving and raw pointers.

#include <ATen/record_function.h>

#include <sstream>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

TEST(InsideAScope, WritesToParametersAreRefused) {
  expect_training_survives([](const InTraining& t) {
    ForwardScope scope(t.group);
    torch::NoGradGuard no_grad;
    auto p = t.net.up->weight;
    const char* remedy = "write_back()";
    for (bool in_memory : {false, true}) {
      if (in_memory) (void)p.sum();
      EXPECT_THAT(message_of([&] { p.mul_(2); }),
                  AllOf(refuses("aten::mul_", "up.weight", remedy),
                        HasSubstr("expected this rank's rows, found the whole parameter, sizes [6, 4]")));
      EXPECT_THAT(message_of([&] { p.data().mul_(2); }), refuses("aten::mul_", "up.weight", remedy));
      EXPECT_THAT(message_of([&] { p[0].zero_(); }), refuses("aten::zero_", "up.weight", remedy));
      EXPECT_THAT(message_of([&] { p.copy_(torch::ones_like(p)); }), refuses("aten::copy_", "up.weight", remedy));
      EXPECT_THAT(message_of([&] { nn::init::normal_(p); }), refuses("aten::normal_", "up.weight", remedy));
      EXPECT_THAT(message_of([&] { torch::_foreach_mul_({p}, 2.0); }),
                  refuses("aten::_foreach_mul_", "up.weight", remedy));
      EXPECT_THAT(message_of([&] { torch::add_out(p, torch::ones({6, 4}, torch::kDouble), 1); }),
                  refuses("aten::add", "up.weight", remedy));
    }
  });
}

TEST(InsideAScope, WritesInBackwardAreRefused) {
  expect_training_survives([](const InTraining& t) {
    std::string message;
    t.net.on_words = [&](const torch::Tensor& h) {
      h.register_hook([&](const torch::Tensor&) {
        torch::NoGradGuard no_grad;
        message = message_of([&] { t.net.up->weight.mul_(2); });
      });
      return h;
    };
    t.optimizer.zero_grad();
    torch::Tensor loss;
    {
      ForwardScope scope(t.group);
      loss = small_loss(t.net, share(0));
    }
    loss.backward();
    EXPECT_THAT(message, refuses("aten::mul_", "up.weight", "in backward"));
    t.net.on_words = std::identity();
  });
}

// A loss whose backward begins with a node that asks its parameter for its size.
torch::Tensor loss_with_variance(const InTraining& t) {
  t.optimizer.zero_grad();
  ForwardScope scope(t.group);
  auto loss = small_loss(t.net, share(0));
  return loss + t.net.up->weight.var();  // recorded last
}

TEST(ABackward, WithObserversThatWereOnInForwardOnlyIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto loss = loss_with_variance(t);
    {
      const at::RecordFunctionGuard no_observers(false);
      EXPECT_THAT(message_of([&] { loss.backward(); }),
                  AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] backward: ")), HasSubstr("RecordFunctionGuard"),
                        HasSubstr("'up'"), HasSubstr("reset_iter_state()")));
    }
    t.group.reset_iter_state();
  });
}

TEST(ABackward, WithLocalRowsOpenIsRefused) {
  expect_training_survives([](const InTraining& t) {
    auto loss = loss_with_variance(t);
    {
      LocalRows rows(t.group);
      EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("close it before backward"));
    }
    t.group.reset_iter_state();
  });
}

TEST(InsideAScope, MaxNormOfAnEmbeddingIsRefused) {
  std::vector<nn::Embedding> embeddings;
  for (int r = 0; r < 2; ++r)
    embeddings.push_back(build_alike([] { return nn::Embedding(nn::EmbeddingOptions(7, 4).max_norm(0.1)); }));
  run_thread_ranks(2, [&](int r) {
    auto model = fully_shard(embeddings[static_cast<size_t>(r)]);
    auto before = full_tensor(model->weight);
    auto ids = torch::zeros({2}, torch::kLong);
    EXPECT_THAT(message_of([&] { model(ids); }), refuses("aten::embedding_renorm_", "weight", "write_back()"));
    EXPECT_TRUE(torch::equal(before, full_tensor(model->weight)));
    model->options.max_norm(std::nullopt);
    EXPECT_EQ(model(ids).sizes(), torch::IntArrayRef({2, 4}));
  });
}

TEST(InsideAScope, SteppingSgdAndAdamWIsRefused) {
  expect_training_survives([](const InTraining& t) {
    torch::optim::SGD sgd(t.net.parameters(), torch::optim::SGDOptions(0.1));
    ForwardScope scope(t.group);
    for (auto* optimizer : {static_cast<torch::optim::Optimizer*>(&sgd), &t.optimizer})
      EXPECT_THAT(message_of([&] { optimizer->step(); }),
                  AllOf(HasSubstr("parameter 'words.weight'"), HasSubstr("optimizer.step() belongs after it")));
  });
}

TEST(InsideAScope, SteppingEveryOptimizerIsRefusedAndLeavesTheParameters) {
  expect_training_survives([](const InTraining& t) {
    auto p = t.net.parameters();
    std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
    optimizers.push_back(std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9)));
    optimizers.push_back(std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.1)));
    optimizers.push_back(std::make_unique<torch::optim::RMSprop>(p, torch::optim::RMSpropOptions(0.1)));
    optimizers.push_back(std::make_unique<torch::optim::Adagrad>(p, torch::optim::AdagradOptions(0.1)));
    ForwardScope scope(t.group);
    for (auto& optimizer : optimizers)
      EXPECT_THAT(message_of([&] { optimizer->step(); }),
                  AllOf(HasSubstr("parameter 'words.weight'"), HasSubstr("optimizer.step() belongs after")));
  });
}

// `.grad` stays in place until a backward begins, so what is done to it in a scope lasts.
TEST(InsideAScope, ZeroGradTakesEffect) {
  for (bool set_to_none : {true, false})
    expect_training_survives([&](const InTraining& t) {
      const auto& p = t.net.up->weight;
      auto backward = [&](bool zeroes) {
        torch::Tensor loss;
        {
          ForwardScope scope(t.group);
          EXPECT_EQ(p.grad().size(0), local_rows(p).count);
          if (zeroes) t.optimizer.zero_grad(set_to_none);
          EXPECT_EQ(p.grad().defined(), !(zeroes && set_to_none));
          loss = small_loss(t.net, share(1));
        }
        loss.backward();
        return full_grad(p);
      };
      auto once = backward(true);
      EXPECT_LT(relative_difference(once * 2, backward(false)), 1e-12);
      EXPECT_TRUE(torch::equal(once, backward(true)));
    });
}

std::string saved(const auto& what) {
  std::ostringstream file;
  torch::save(what, file);
  return file.str();
}

TEST(Saving, InAScopeIsRefusedWhileAGroupHasNoMemory) {
  expect_training_survives([](const InTraining& t) {
    auto model = std::static_pointer_cast<MisuseNetImpl>(t.net.shared_from_this());
    ForwardScope scope(t.group);
    (void)t.net.words->weight.sum();  // brings the root group only
    EXPECT_THAT(message_of<c10::Error>([&] { saved(model); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2]")), HasSubstr("parameter 'up.weight'"),
                      HasSubstr("not in memory"), HasSubstr("save outside the scope")));
    EXPECT_THAT(message_of<c10::Error>([&] { saved(t.net.down->bias); }), HasSubstr("parameter 'down.bias'"));
  });
}

TEST(Saving, InAScopeWritesTheWholeModelWhenItIsInMemory) {
  expect_training_survives([](const InTraining& t) {
    std::vector<torch::Tensor> expected;
    for (const auto& p : t.net.parameters()) expected.push_back(full_tensor(p));
    std::istringstream file([&] {
      auto whole = summon_full_params(t.group);
      for (const auto& item : t.net.named_parameters()) {
        auto plain = torch::empty_like(item.value()).copy_(item.value().detach()).requires_grad_();
        EXPECT_EQ(saved(item.value()).size(), saved(plain).size()) << item.key();
      }
      return saved(std::static_pointer_cast<MisuseNetImpl>(t.net.shared_from_this()));
    }());
    auto copy = std::make_shared<MisuseNetImpl>();
    copy->to(torch::kDouble);
    torch::load(copy, file);
    auto found = copy->parameters();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << i;
  });
}

TEST(Saving, OutsideAScopeWritesExactlyTheRows) {
  expect_training_survives([](const InTraining& t) {
    for (const auto& item : t.net.named_parameters()) {
      auto rows = item.value().detach().clone();
      EXPECT_EQ(item.value().storage().nbytes(), rows.nbytes()) << item.key();
      auto text = saved(item.value());
      EXPECT_EQ(text.size(), saved(torch::empty_like(rows).copy_(rows).requires_grad_()).size()) << item.key();
      torch::Tensor copy;
      std::istringstream file(text);
      torch::load(copy, file);
      EXPECT_TRUE(torch::equal(rows, copy)) << item.key();
    }
  });
}

TEST(Saving, OfAModuleOutsideAScopeIsRefused) {
  expect_training_survives([](const InTraining& t) {
    const auto model = std::static_pointer_cast<MisuseNetImpl>(t.net.shared_from_this());
    EXPECT_THAT(message_of([&] { saved(model); }), refuses("torch::save", "words.weight", "fsdp::save(model, path)"));
    EXPECT_THAT(message_of([&] { saved(t.net.up); }), refuses("torch::save", "up.weight", "summon_full_params"));
    torch::Tensor loaded;
    std::vector<torch::Tensor> all_loaded;
    std::istringstream one(saved(t.net.up->weight)), all(saved(t.net.parameters()));
    torch::load(loaded, one);
    torch::load(all_loaded, all);
    EXPECT_EQ(loaded.sizes(), t.net.up->weight.sizes());
    EXPECT_EQ(all_loaded.size(), t.net.parameters().size());
    saved(t.optimizer);  // state of the rows, for an optimizer of the same rows
    saved(torch::nn::Linear(2, 3));
  });
}

TEST(Saving, OfAModuleWhoseRanksHaveAllRowsIsThatOfAPlainOne) {
  const auto net = std::make_shared<MisuseNetImpl>();
  const auto plain = saved(net);
  run_thread_ranks(1, [&](int) {
    const auto group = fully_shard(static_cast<torch::nn::Module&>(*net));
    EXPECT_EQ(plain, saved(net));
  });
}

TEST(RawPointers, ToAParameterWithoutMemoryAreRefused) {
  expect_training_survives([](const InTraining& t) {
    ForwardScope scope(t.group);
    auto p = t.net.up->weight;
    auto expected = AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] raw access: parameter 'up.weight'")),
                          HasSubstr("not in memory"), HasSubstr("Group::unshard()"));
    EXPECT_THAT(message_of<c10::Error>([&] { p.data_ptr(); }), expected);
    EXPECT_THAT(message_of<c10::Error>([&] { p.data_ptr<double>(); }), expected);
    EXPECT_THAT(message_of<c10::Error>([&] { p.const_data_ptr(); }), expected);
    EXPECT_THAT(message_of<c10::Error>([&] { p.const_data_ptr<double>(); }), expected);
    EXPECT_THAT(message_of<c10::Error>([&] { p.mutable_data_ptr(); }), expected);
    EXPECT_THAT((message_of<c10::Error>([&] { p.accessor<double, 2>(); })), expected);
    EXPECT_THAT(message_of<c10::Error>([&] { p.data().const_data_ptr<double>(); }), expected);
    EXPECT_THAT(message_of<c10::Error>([&] { p.t().const_data_ptr<double>(); }), expected);
    (void)p.sum();
    EXPECT_NE(p.const_data_ptr<double>(), nullptr);
  });
}

TEST(RawPointers, ToAViewThatOutlivesTheScopeAreRefused) {
  expect_training_survives([](const InTraining& t) {
    torch::Tensor view;
    {
      ForwardScope scope(t.group);
      torch::NoGradGuard no_grad;
      (void)t.net.up->weight.sum();
      view = t.net.up->weight.t();
    }
    EXPECT_THAT(message_of<c10::Error>([&] { view.const_data_ptr<double>(); }), HasSubstr("parameter 'up.weight'"));
    EXPECT_THAT(message_of([&] { view.sum(); }), HasSubstr("parameter 'up.weight'"));
  });
}

TEST(Clipping, InAScopeIsRefused) {
  expect_training_survives([](const InTraining& t) {
    ForwardScope scope(t.group);
    EXPECT_THAT(
        message_of([&] { clip_grad_norm_(t.group, 1.0); }),
        AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] clip_grad_norm_")), HasSubstr("Call it after them")));
  });
}

TEST(Clipping, WhileGradientsWaitForTheirReductionIsRefused) {
  expect_training_survives([](const InTraining& t) {
    t.optimizer.zero_grad();
    auto backward = [&] {
      torch::Tensor loss;
      {
        ForwardScope scope(t.group);
        loss = small_loss(t.net, share(1));
      }
      loss.backward();
    };
    {
      auto local = t.group.no_sync();
      backward();
    }
    EXPECT_THAT(message_of([&] { clip_grad_norm_(t.group, 1.0); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] clip_grad_norm_")),
                      HasSubstr("wait for their reduction"), HasSubstr("outside of no_sync()")));
    backward();
    EXPECT_GT(clip_grad_norm_(t.group, 1.0), 0);
  });
}

TEST(Clipping, ToANonsensicalNormIsRefused) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THAT(message_of([&] { clip_grad_norm_(t.group, -1.0); }), HasSubstr("expected max_norm >= 0, found -1"));
    EXPECT_THAT(message_of([&] { clip_grad_norm_(t.group, 1.0, 0); }), HasSubstr("expected norm_type > 0"));
    EXPECT_THAT(message_of([&] { clip_grad_norm_(t.group, std::nan("")); }), HasSubstr("found nan"));
  });
}

}  // namespace
}  // namespace fsdp::test
