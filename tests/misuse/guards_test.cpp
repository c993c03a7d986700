// Tests of guards that are nested, that exclude each other, or that an exception closes.

#include <stdexcept>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

bool shows_whole(const torch::Tensor& p) { return p.sizes() == torch::IntArrayRef(global_sizes(p)); }

TEST(ForwardScopes, MayBeNestedAndTheOutermostDecides) {
  expect_training_survives([](const InTraining& t) {
    {
      ForwardScope outer(t.group);
      {
        ForwardScope again(t.group);
        ForwardScope inner(group_of(*t.net.up));
        EXPECT_TRUE(shows_whole(t.p));
      }
      EXPECT_TRUE(shows_whole(t.p));
      EXPECT_TRUE(small_loss(t.net, share(1)).defined());
    }
    EXPECT_FALSE(shows_whole(t.p));
    ForwardScope inner(group_of(*t.net.up));  // only the parameters of `up` show whole sizes
    EXPECT_TRUE(shows_whole(t.p));
    EXPECT_FALSE(shows_whole(t.net.down->weight));
    auto x = torch::ones({1, 4}, torch::kDouble);
    EXPECT_EQ(t.net.up->forward(x).size(1), 6);
    expect_error([&] { t.net.norm->forward(x); }, refusal("aten::layer_norm", "norm.weight", "fsdp::ForwardScope"));
  });
}

// Training later uses parameters that were gathered in inference mode.
TEST(ForwardScopes, InInferenceModeLeaveTrainingAlone) {
  expect_training_survives([](const InTraining& t) {
    t.group.set_reshard_after_forward(false);
    t.group.set_reshard_after_backward(false);
    group_of(*t.net.up).unshard().wait();
    torch::Tensor evaluated;
    {
      c10::InferenceMode inference;
      evaluated = t.loss();
      EXPECT_TRUE(evaluated.is_inference());
      summon_full_params(t.group).write_back();
    }
    ForwardScope scope(t.group);
    auto loss = small_loss(t.net, share(1));
    EXPECT_EQ(loss.item<double>(), evaluated.item<double>());
    EXPECT_EQ(torch::autograd::grad({loss}, {t.p})[0].size(0), 6);
  });
}

// A program may open a guard on a condition, so guards must fit in std::optional.
TEST(Guards, FitOptional) {
  expect_training_survives([](const InTraining& t) {
    const auto loss = [&](bool waits) {
      std::optional<NoSync> guard;
      if (waits) guard.emplace(t.group.no_sync());
      std::optional<ForwardScope> scope;
      scope.emplace(t.group);
      return small_loss(t.net, share(1));
    };
    t.optimizer.zero_grad();
    {
      std::optional<NoSync> guard(t.group.no_sync());
      const auto moved = std::move(*guard);
      guard.reset();
      loss(true).backward();
      EXPECT_FALSE(t.p.grad().defined()) << "it is the guard that it was moved to that ends it";
    }
    loss(false).backward();
    const auto twice = full_grad(t.p);
    t.optimizer.zero_grad();
    loss(false).backward();
    EXPECT_LT(relative_difference(full_grad(t.p) * 2, twice), 1e-12);
    std::optional<LocalRows> rows;
    rows.emplace(t.group);
    rows.reset();
    std::optional<SummonFullParams> whole;
    whole.emplace(t.group);
    EXPECT_TRUE(shows_whole(t.p));
  });
}

TEST(LocalRowsAndScopes, ExcludeOneAnother) {
  expect_training_survives([](const InTraining& t) {
    {
      LocalRows rows(t.group);
      LocalRows more(group_of(*t.net.up));
      expect_error([&] { ForwardScope scope(t.group); },
                   {"@forward scope", "LocalRows is open", "Close the LocalRows"});
      expect_error([&] { auto whole = summon_full_params(t.group); }, {"LocalRows is open"});
    }
    const auto loss = t.loss();
    {
      LocalRows rows(t.group);
      expect_error([&] { loss.backward(); }, {"@backward", "Close the LocalRows"});
    }
    ForwardScope scope(group_of(*t.net.up));
    expect_error([&] { LocalRows rows(t.group); }, {"@LocalRows", "'up' is already unsharded", "Close it first"});
    LocalRows of_another(group_of(*t.net.down));
  });
}

TEST(AGuard, ThatAnExceptionClosesIsClosed) {
  using Act = void (*)(const InTraining&);
  const Act acts[]{[](auto& t) {
                     ForwardScope scope(t.group);
                     (void)t.p.sum();
                     throw std::runtime_error("out of eggs");
                   },
                   [](auto& t) {  // what the guard's body wrote is lost
                     auto whole = summon_full_params(t.group);
                     torch::NoGradGuard no_grad;
                     t.p.fill_(3);
                     throw std::runtime_error("out of eggs");
                   },
                   [](auto& t) {  // the next backward synchronises
                     auto outer = t.group.no_sync();
                     auto inner = t.group.no_sync();
                     throw std::runtime_error("out of eggs");
                   }};
  expect_training_survives([&](const InTraining& t) {
    for (const auto act : acts) {
      EXPECT_THROW(act(t), std::runtime_error);
      EXPECT_FALSE(shows_whole(t.p));
      // Over a network, the group that a recorded forward has read last stays whole until the backward.
      if (act == acts[0]) t.group.reset_iter_state();
      EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
    }
  });
}

TEST(NoSync, NestedEndsWithTheOutermostAndRefusesWritesAndClippingWhileGradientsWait) {
  expect_training_survives([](const InTraining& t) {
    t.net.zero_grad();
    const auto before = t.group.stats().reductions;
    {
      auto outer = t.group.no_sync();
      {
        auto inner = t.group.no_sync();
      }
      t.loss().backward();
    }
    EXPECT_EQ(t.group.stats().reductions, before);
    const Words refused{"wait for their reduction", "outside of no_sync()"};
    optim::AdamW ours(t.net.parameters());
    expect_error([&] { ours.step(); }, refused);
    {
      torch::NoGradGuard no_grad;
      expect_error([&] { t.p.mul_(0.9); }, refused);
    }
    expect_error([&] { clip_grad_norm_(t.group, 1.0); }, refused);
    expect_error([&] { clip_grad_norm_(t.group, 1.0); }, {"@clip_grad_norm_"});
    t.loss().backward();
    EXPECT_EQ(t.group.stats().reductions, before + 4);
    EXPECT_GT(clip_grad_norm_(t.group, 1.0), 0);
  });
}

TEST(Summoning, ExcludesScopesAndForwardsThatAutogradRecords) {
  expect_training_survives([](const InTraining& t) {
    const Words is_whole{"summon_full_params", "is already unsharded"};
    {
      const auto whole = summon_full_params(t.group);
      expect_error([&] { small_loss(t.net, share(1)); }, {"parameter 'words.weight'", "under a torch::NoGradGuard"});
      expect_error([&] { auto again = summon_full_params(t.group); }, is_whole);
      expect_error([&] { auto again = summon_full_params(group_of(*t.net.up)); }, is_whole);
      expect_error([&] { group_of(*t.net.up).reshard(); }, {"summon_full_params is open"});
      expect_error([&] { t.group.reset_iter_state(); }, {"summon_full_params is open"});
      torch::NoGradGuard no_grad;
      EXPECT_TRUE(small_loss(t.net, share(1)).defined());
    }
    ForwardScope scope(t.group);
    expect_error([&] { auto again = summon_full_params(t.group); }, is_whole);
  });
}

}  // namespace
}  // namespace fsdp::test
