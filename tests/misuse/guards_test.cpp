// Guards that are nested, that exclude one another, and that an exception closes.

#include <stdexcept>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool shows_whole(const torch::Tensor& p) { return p.sizes() == torch::IntArrayRef(global_sizes(p)); }

TEST(ForwardScopes, MayBeNestedAndTheOutermostDecides) {
  expect_training_survives([](const InTraining& t) {
    const auto& p = t.net.up->weight;
    auto inner_group = group_of(*t.net.up);
    {
      ForwardScope outer(t.group);
      {
        ForwardScope again(t.group);
        ForwardScope inner(inner_group);
        EXPECT_TRUE(shows_whole(p));
      }
      EXPECT_TRUE(shows_whole(p));
      EXPECT_TRUE(small_loss(t.net, share(1)).defined());
    }
    EXPECT_FALSE(shows_whole(p));
  });
}

TEST(ForwardScopes, OfAnInnerGroupShowNothingElse) {
  expect_training_survives([](const InTraining& t) {
    ForwardScope inner(group_of(*t.net.up));
    EXPECT_TRUE(shows_whole(t.net.up->weight));
    EXPECT_FALSE(shows_whole(t.net.down->weight));
    auto x = torch::ones({1, 4}, torch::kDouble);
    EXPECT_EQ(t.net.up->forward(x).size(1), 6);
    EXPECT_THAT(message_of([&] { t.net.norm->forward(x); }),
                refuses("aten::layer_norm", "norm.weight", "fsdp::ForwardScope"));
  });
}

// What is gathered in inference mode serves training later.
TEST(ForwardScopes, InInferenceModeLeaveTrainingAlone) {
  expect_training_survives([](const InTraining& t) {
    t.group.set_reshard_after_forward(false);
    t.group.set_reshard_after_backward(false);
    group_of(*t.net.up).unshard().wait();
    torch::Tensor evaluated;
    {
      c10::InferenceMode inference;
      {
        ForwardScope scope(t.group);
        evaluated = small_loss(t.net, share(1));
        EXPECT_TRUE(evaluated.is_inference());
      }
      auto whole = summon_full_params(t.group);
      whole.write_back();
    }
    ForwardScope scope(t.group);
    auto loss = small_loss(t.net, share(1));
    EXPECT_EQ(loss.item<double>(), evaluated.item<double>());
    auto by_hand = torch::autograd::grad({loss}, {t.net.up->weight})[0];
    EXPECT_EQ(by_hand.size(0), 6);
  });
}

TEST(LocalRowsAndScopes, ExcludeOneAnother) {
  expect_training_survives([](const InTraining& t) {
    auto where = c10::str("[fsdp rank ", rank(), "/2] ");
    {
      LocalRows rows(t.group);
      LocalRows more(group_of(*t.net.up));
      EXPECT_THAT(message_of([&] { ForwardScope scope(t.group); }),
                  AllOf(HasSubstr(where + "forward scope"), HasSubstr("LocalRows is open"), HasSubstr("close it")));
      EXPECT_THAT(message_of([&] { auto whole = summon_full_params(t.group); }), HasSubstr("LocalRows is open"));
    }
    torch::Tensor loss;
    {
      ForwardScope scope(t.group);
      loss = small_loss(t.net, share(1));
    }
    {
      LocalRows rows(t.group);
      EXPECT_THAT(message_of([&] { loss.backward(); }), AllOf(HasSubstr(where + "backward"), HasSubstr("close it")));
    }
    {
      ForwardScope scope(group_of(*t.net.up));
      EXPECT_THAT(message_of([&] { LocalRows rows(t.group); }),
                  AllOf(HasSubstr(where + "LocalRows"), HasSubstr("'up' is whole"), HasSubstr("Close it first")));
      LocalRows of_another(group_of(*t.net.down));
    }
  });
}

TEST(AForwardScope, ThatAnExceptionClosesShowsRowsAgain) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THROW(
        {
          ForwardScope scope(t.group);
          (void)t.net.up->weight.sum();
          throw std::runtime_error("out of eggs");
        },
        std::runtime_error);
    EXPECT_FALSE(shows_whole(t.net.up->weight));
  });
}

TEST(Summoning, ThatAnExceptionClosesLosesWhatWasWritten) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THROW(
        {
          auto whole = summon_full_params(t.group);
          torch::NoGradGuard no_grad;
          t.net.up->weight.fill_(3);
          throw std::runtime_error("out of eggs");
        },
        std::runtime_error);
    EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
  });
}

TEST(NoSync, ThatAnExceptionClosesSynchronisesAgain) {
  expect_training_survives([](const InTraining& t) {
    EXPECT_THROW(
        {
          auto outer = t.group.no_sync();
          auto inner = t.group.no_sync();
          throw std::runtime_error("out of eggs");
        },
        std::runtime_error);
  });
}

TEST(NoSync, NestedEndsWithTheOutermost) {
  expect_training_survives([](const InTraining& t) {
    auto reductions = [&] { return t.group.stats().reductions; };
    auto backward = [&] {
      torch::Tensor loss;
      {
        ForwardScope scope(t.group);
        loss = small_loss(t.net, share(1));
      }
      loss.backward();
    };
    auto before = reductions();
    {
      auto outer = t.group.no_sync();
      {
        auto inner = t.group.no_sync();
      }
      backward();
      EXPECT_EQ(reductions(), before);
    }
    backward();
    EXPECT_EQ(reductions(), before + 4);
  });
}

TEST(NoSync, WritesToRowsWhoseGradientsWaitAreRefused) {
  expect_training_survives([](const InTraining& t) {
    t.net.zero_grad();
    {
      const auto no_sync = t.group.no_sync();
      torch::Tensor loss;
      {
        ForwardScope scope(t.group);
        loss = small_loss(t.net, share(1));
      }
      loss.backward();
    }
    const auto refused = AllOf(HasSubstr("wait for their reduction"), HasSubstr("outside of no_sync()"));
    optim::AdamW ours(t.net.parameters());
    EXPECT_THAT(message_of([&] { ours.step(); }), refused);
    torch::NoGradGuard no_grad;
    EXPECT_THAT(message_of([&] { t.net.up->weight.mul_(0.9); }), refused);
    t.group.reset_iter_state();
  });
}

TEST(Summoning, AForwardThatAutogradRecordsIsRefused) {
  expect_training_survives([](const InTraining& t) {
    const auto whole = summon_full_params(t.group);
    EXPECT_THAT(message_of([&] { small_loss(t.net, share(1)); }),
                AllOf(HasSubstr("parameter 'words.weight'"), HasSubstr("Evaluate under a torch::NoGradGuard")));
    torch::NoGradGuard no_grad;
    EXPECT_TRUE(small_loss(t.net, share(1)).defined());
  });
}

TEST(Summoning, InsideAnotherOneOrAScopeIsRefused) {
  expect_training_survives([](const InTraining& t) {
    const auto refused = AllOf(HasSubstr("summon_full_params"), HasSubstr("is whole already"));
    {
      auto whole = summon_full_params(t.group);
      EXPECT_THAT(message_of([&] { auto again = summon_full_params(t.group); }), refused);
      EXPECT_THAT(message_of([&] { auto again = summon_full_params(group_of(*t.net.up)); }), refused);
      EXPECT_THAT(message_of([&] { group_of(*t.net.up).reshard(); }), HasSubstr("summon_full_params is open"));
      EXPECT_THAT(message_of([&] { t.group.reset_iter_state(); }), HasSubstr("summon_full_params is open"));
    }
    ForwardScope scope(t.group);
    EXPECT_THAT(message_of([&] { auto again = summon_full_params(t.group); }), refused);
  });
}

}  // namespace
}  // namespace fsdp::test
