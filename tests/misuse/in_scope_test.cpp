// Tests of writes, optimizer steps, saving and raw pointers inside a scope, where a whole parameter is a copy and may
// have no memory.

#include <ATen/record_function.h>

#include <sstream>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr unsigned kWriting = kInScopeUnrecorded | kInMemory;
constexpr const char* kRemedy = "write_back()";

Tensor ones() { return torch::ones({6, 4}, torch::kDouble); }

TEST(InsideAScope, WritesStepsAndClippingAreRefused) {
  using namespace torch::optim;
  const auto refused = [](const std::string& op) { return refusal("aten::" + op, "up.weight", kRemedy); };
  expect_refused({
      {kWriting, refused("mul_"), {[](auto& t) { t.p.mul_(2); }, [](auto& t) { t.p.data().mul_(2); }}},
      {kWriting, {"expected this rank's rows, found the whole parameter, sizes [6, 4]"}, {[](auto& t) {
         t.p.mul_(2);
       }}},
      {kWriting, refused("zero_"), {[](auto& t) { t.p[0].zero_(); }}},
      {kWriting, refused("copy_"), {[](auto& t) { t.p.copy_(ones()); }}},
      {kWriting, refused("normal_"), {[](auto& t) { nn::init::normal_(t.p); }}},
      {kWriting, refused("_foreach_mul_"), {[](auto& t) { torch::_foreach_mul_({t.p}, 2.0); }}},
      {kWriting, {"@aten::add", "parameter 'up.weight'", "expected", "found", kRemedy}, {[](auto& t) {
         auto out = t.p;
         torch::add_out(out, ones(), 1);
       }}},
      {kInBackward, refusal("aten::mul_", "up.weight", "in backward"), {[](auto& t) { t.p.mul_(2); }}},
      {kInBackward, {"@reset_iter_state: ", "inside a backward", "after backward() has thrown"}, {[](auto& t) {
         t.group.reset_iter_state();
       }}},
      {kOutside, refusal("aten::embedding_renorm_", "weight", "Write after the scope"), {[](auto&) {
         auto model = fully_shard(build_alike([] { return nn::Embedding(nn::EmbeddingOptions(7, 4).max_norm(0.1)); }));
         model(torch::zeros({2}, torch::kLong));
       }}},
      {kInScope,
       {"parameter 'words.weight'", "optimizer.step() belongs after"},
       {[](auto& t) { t.optimizer.step(); }, [](auto& t) { SGD(t.net.parameters(), SGDOptions(0.1)).step(); },
        [](auto& t) { SGD(t.net.parameters(), SGDOptions(0.1).momentum(0.9)).step(); },
        [](auto& t) { Adam(t.net.parameters(), AdamOptions(0.1)).step(); },
        [](auto& t) { RMSprop(t.net.parameters(), RMSpropOptions(0.1)).step(); },
        [](auto& t) { Adagrad(t.net.parameters(), AdagradOptions(0.1)).step(); }}},
      {kInScope, {"@clip_grad_norm_", "Make this call after they have ended"}, {[](auto& t) {
         clip_grad_norm_(t.group, 1.0);
       }}},
  });
}

TEST(ABackward, ThatFindsOtherObserversOrLocalRowsIsRefused) {
  expect_training_survives([](const InTraining& t) {
    // The first node of this loss's backward asks for the size of the parameter.
    const auto loss_with_variance = [&] {
      t.optimizer.zero_grad();
      ForwardScope scope(t.group);
      auto loss = small_loss(t.net, share(0));
      return loss + t.p.var();  // recorded last, so its node runs first
    };
    {
      const auto loss = loss_with_variance();
      const at::RecordFunctionGuard no_observers(false);
      expect_error([&] { loss.backward(); }, {"@backward: ", "RecordFunctionGuard", "'up'", "reset_iter_state()"});
    }
    t.group.reset_iter_state();
    {
      const auto loss = loss_with_variance();
      LocalRows rows(t.group);
      expect_error([&] { loss.backward(); }, {"@backward", "Close the LocalRows before backward"});
    }
    t.group.reset_iter_state();
  });
}

// `.grad` stays in place until a backward begins, so a change to it in a scope is kept.
TEST(InsideAScope, ZeroGradTakesEffect) {
  for (bool set_to_none : {true, false})
    expect_training_survives([&](const InTraining& t) {
      auto backward = [&](bool zeroes) {
        Tensor loss;
        {
          ForwardScope scope(t.group);
          EXPECT_EQ(t.p.grad().size(0), local_rows(t.p).count);
          if (zeroes) t.optimizer.zero_grad(set_to_none);
          EXPECT_EQ(t.p.grad().defined(), !(zeroes && set_to_none));
          loss = small_loss(t.net, share(1));
        }
        loss.backward();
        return full_grad(t.p);
      };
      auto once = backward(true);
      EXPECT_LT(relative_difference(once * 2, backward(false)), 1e-12);
      EXPECT_TRUE(torch::equal(once, backward(true)));
    });
}

TEST(RawPointers, ToAParameterWithoutMemoryAreRefused) {
  expect_refused<c10::Error>(
      {{kInScope,
        {"@raw access: parameter 'up.weight'", "not in memory", "Group::unshard()"},
        {[](auto& t) { t.p.data_ptr(); }, [](auto& t) { t.p.template data_ptr<double>(); },
         [](auto& t) { t.p.const_data_ptr(); }, [](auto& t) { t.p.template const_data_ptr<double>(); },
         [](auto& t) { t.p.mutable_data_ptr(); }, [](auto& t) { t.p.template accessor<double, 2>(); },
         [](auto& t) { t.p.data().template const_data_ptr<double>(); },
         [](auto& t) { t.p.t().template const_data_ptr<double>(); }}}});
  expect_training_survives([](const InTraining& t) {
    Tensor view;
    {
      ForwardScope scope(t.group);
      torch::NoGradGuard no_grad;
      (void)t.p.sum();
      EXPECT_NE(t.p.const_data_ptr<double>(), nullptr);
      view = t.p.t();
    }
    expect_error<c10::Error>([&] { view.const_data_ptr<double>(); }, {"parameter 'up.weight'"});
    expect_error([&] { view.sum(); }, {"parameter 'up.weight'"});
  });
}

std::string saved(const auto& what) {
  std::ostringstream file;
  torch::save(what, file);
  return file.str();
}

// Returns the bytes that torch::save writes for a plain tensor with the same values.
std::string saved_plain(const Tensor& p) {
  return saved(torch::empty_like(p.detach()).copy_(p.detach()).requires_grad_());
}

TEST(Saving, InAScopeWritesTheWholeModelAndIsRefusedWhileAGroupHasNoMemory) {
  expect_training_survives([](const InTraining& t) {
    {
      ForwardScope scope(t.group);
      (void)t.net.words->weight.sum();  // gathers the root group only
      expect_error<c10::Error>([&] { saved(t.model()); },
                               {"@", "parameter 'up.weight'", "not in memory", "save outside the scope"});
      expect_error<c10::Error>([&] { saved(t.net.down->bias); }, {"parameter 'down.bias'"});
    }
    std::vector<Tensor> expected;
    for (const auto& p : t.net.parameters()) expected.push_back(full_tensor(p));
    std::istringstream file([&] {
      auto whole = summon_full_params(t.group);
      for (const auto& p : t.net.parameters()) EXPECT_EQ(saved(p).size(), saved_plain(p).size());
      return saved(t.model());
    }());
    auto copy = std::make_shared<MisuseNetImpl>();
    copy->to(torch::kDouble);
    torch::load(copy, file);
    EXPECT_TRUE(std::ranges::equal(expected, copy->parameters(), at::equal));
  });
}

TEST(Saving, OfRowsIsRefusedOutsideLocalRowsWhoeverWritesThem) {
  auto of_gradient = refusal("torch::save", "up.weight", "fsdp::LocalRows");
  of_gradient[1] = "the gradient of parameter 'up.weight'";
  expect_refused({{kInTraining,
                   refusal("torch::save", "words.weight", "fsdp::save(model, path)"),
                   {[](auto& t) { saved(t.model()); }, [](auto& t) { saved(t.net.parameters()); }}},
                  {kInTraining,
                   refusal("torch::save", "up.weight", "summon_full_params"),
                   {[](auto& t) { saved(t.net.up); }, [](auto& t) { saved(t.p); }, [](auto& t) { saved(t.p.detach()); },
                    [](auto& t) { saved(t.p.detach().slice(1, 0, 2)); }, [](auto& t) { torch::pickle_save(t.p); },
                    [](auto& t) { torch::pickle_save(t.p.detach()); },
                    [](auto& t) { torch::pickle_save(std::vector<Tensor>{torch::ones({2}), t.p.data()}); }}},
                  {kInTraining,
                   of_gradient,
                   {[](auto& t) { saved(t.p.grad()); }, [](auto& t) { torch::pickle_save(t.p.grad()); }}}});
}

TEST(Saving, InLocalRowsWritesExactlyTheRows) {
  expect_training_survives([](const InTraining& t) {
    saved(t.optimizer);  // allowed, because an optimizer of the same rows can load the state
    saved(nn::Linear(2, 3));
    torch::pickle_save(full_tensor(t.p));
    const LocalRows rows(t.group);
    for (const auto& p : t.net.parameters()) {
      EXPECT_EQ(p.storage().nbytes(), p.nbytes());
      auto text = saved(p);
      EXPECT_EQ(text.size(), saved_plain(p).size());
      Tensor copy;
      std::istringstream file(text);
      torch::load(copy, file);
      EXPECT_TRUE(torch::equal(plain_copy(p), copy));
    }
    std::vector<Tensor> all_loaded;
    std::istringstream all(saved(t.net.parameters()));
    torch::load(all_loaded, all);
    EXPECT_EQ(all_loaded.size(), t.net.parameters().size());
    const auto pickled = torch::pickle_save(t.p.detach());
    EXPECT_TRUE(torch::equal(torch::pickle_load(pickled).toTensor(), t.p.detach()));
  });
}

TEST(Saving, OfAModuleWhoseRanksHaveAllRowsIsThatOfAPlainOne) {
  const auto net = std::make_shared<MisuseNetImpl>();
  const auto plain = saved(net);
  run_thread_ranks(1, [&](int) {
    const auto group = fully_shard(static_cast<nn::Module&>(*net));
    EXPECT_EQ(plain, saved(net));
  });
}

}  // namespace
}  // namespace fsdp::test
