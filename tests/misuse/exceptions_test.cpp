// Exceptions from the user's own forward and backward: what is refused next, and that training goes on after a reset.

#include <stdexcept>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using torch::Tensor;

// Throws in its forward or in its backward.
struct ThrowingFunction : torch::autograd::Function<ThrowingFunction> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, bool in_forward) {
    if (in_forward) throw std::runtime_error("out of eggs");
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("out of eggs");
  }
};

Tensor throw_now(const Tensor&) { throw std::runtime_error("out of eggs"); }
Tensor throw_now_in_function(const Tensor& x) { return ThrowingFunction::apply(x, true); }
Tensor throw_in_backward(const Tensor& x) { return ThrowingFunction::apply(x, false); }
Tensor throw_in_hook(const Tensor& x) {
  x.register_hook([](const Tensor&) { throw std::runtime_error("out of eggs"); });
  return x;
}

using Place = std::function<Tensor(const Tensor&)> MisuseNetImpl::*;

// An iteration in which `thrower` throws.
void fail_iteration(const InTraining& t, Place place, Tensor (*thrower)(const Tensor&)) {
  t.net.*place = thrower;
  EXPECT_THROW(
      {
        Tensor loss;
        {
          ForwardScope scope(t.group);
          loss = small_loss(t.net, share(1));
        }
        loss.backward();
      },
      std::runtime_error);
  t.net.*place = std::identity();
}

std::vector<Tensor> copied_gradients(const InTraining& t) {
  std::vector<Tensor> gradients;
  for (const auto& p : t.net.parameters())
    gradients.push_back(p.grad().defined() ? p.grad().detach().clone() : Tensor());
  return gradients;
}

void expect_gradients(const InTraining& t, const std::vector<Tensor>& expected) {
  auto found = copied_gradients(t);
  auto names = t.net.named_parameters().keys();
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), found[i].defined()) << names[i];
    if (expected[i].defined()) {
      EXPECT_TRUE(torch::equal(expected[i], found[i])) << names[i];
    }
  }
}

void expect_no_gradients(const InTraining& t) {
  for (const auto& item : t.net.named_parameters()) EXPECT_FALSE(item.value().grad().defined()) << item.key();
}

TEST(AnExceptionInForward, ShowsRowsAgainAndNeedsNoReset) {
  for (auto thrower : {throw_now, throw_now_in_function})
    for (auto place : {&MisuseNetImpl::on_words, &MisuseNetImpl::on_hidden})
      expect_training_survives([&](const InTraining& t) {
        auto gradients = copied_gradients(t);
        fail_iteration(t, place, thrower);
        EXPECT_EQ(t.net.up->weight.size(0), local_rows(t.net.up->weight).count);
        expect_gradients(t, gradients);
      });
}

TEST(AnExceptionInForward, MayBeFollowedByAResetThatKeepsGradients) {
  expect_training_survives([](const InTraining& t) {
    auto gradients = copied_gradients(t);
    fail_iteration(t, &MisuseNetImpl::on_hidden, throw_now);
    t.group.reset_iter_state();
    expect_gradients(t, gradients);
    EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
  });
}

TEST(AnExceptionInBackward, IsFollowedByAnErrorThatNamesTheReset) {
  expect_training_survives([](const InTraining& t) {
    fail_iteration(t, &MisuseNetImpl::on_words, throw_in_backward);
    auto expected =
        AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] forward scope: '")), HasSubstr("an earlier backward"),
              HasSubstr("did not finish"), HasSubstr("reset_iter_state()"), HasSubstr("on every rank"));
    EXPECT_THAT(message_of([&] { ForwardScope scope(t.group); }), expected);
    EXPECT_THAT(message_of([&] { auto whole = summon_full_params(t.group); }), HasSubstr("did not finish"));
    EXPECT_THAT(message_of([&] { LocalRows rows(t.group); }), HasSubstr("reset_iter_state()"));
    EXPECT_THAT(message_of([&] { clip_grad_norm_(t.group, 1.0); }), HasSubstr("reset_iter_state()"));
    t.group.reset_iter_state();
  });
}

TEST(ASecondBackward, ThroughAGraphThatIsGoneLeavesTheModelUsableAfterAReset) {
  expect_training_survives([](const InTraining& t) {
    t.optimizer.zero_grad();
    Tensor loss;
    {
      ForwardScope scope(t.group);
      loss = small_loss(t.net, share(1));
    }
    loss.backward();
    EXPECT_THAT(message_of<c10::Error>([&] { loss.backward(); }), HasSubstr("a second time"));
    t.group.reset_iter_state();
    expect_no_gradients(t);
  });
}

class ExceptionInBackward : public testing::TestWithParam<std::tuple<Place, Tensor (*)(const Tensor&)>> {
 protected:
  static void fail(const InTraining& t) { fail_iteration(t, std::get<0>(GetParam()), std::get<1>(GetParam())); }
};

TEST_P(ExceptionInBackward, LeavesNoGradientsAfterAReset) {
  for (bool accumulates : {false, true})
    expect_training_survives([&](const InTraining& t) {
      if (!accumulates) t.optimizer.zero_grad();
      fail(t);
      t.group.reset_iter_state();
      expect_no_gradients(t);
      EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
      EXPECT_TRUE(becomes_zero([&] { return t.group.stats().gradient.current; }));
    });
}

TEST_P(ExceptionInBackward, OfOneRankLeavesNoGradientsOnAnyRankAfterAReset) {
  expect_training_survives([](const InTraining& t) {
    // Where the exception comes late, the backward of the other rank gives all gradients; early, it fails as well.
    auto [place, thrower] = GetParam();
    if (rank() == 1) t.net.*place = thrower;
    try {
      Tensor loss;
      {
        ForwardScope scope(t.group);
        loss = small_loss(t.net, share(1));
      }
      loss.backward();
    } catch (const std::exception&) {
    }
    t.net.*place = std::identity();
    t.group.reset_iter_state();
    expect_no_gradients(t);
  });
}

TEST_P(ExceptionInBackward, InARowLeavesTheModelUsable) {
  expect_training_survives([](const InTraining& t) {
    for (int again = 0; again < 3; ++again) {
      fail(t);
      t.group.reset_iter_state();
    }
  });
}

TEST_P(ExceptionInBackward, OfAMicroBatchThatIsNotReducedLeavesTheModelUsable) {
  expect_training_survives([](const InTraining& t) {
    {
      auto guard = t.group.no_sync();
      fail(t);
    }
    t.group.reset_iter_state();
    expect_no_gradients(t);
  });
}

TEST_P(ExceptionInBackward, InsideAScopeLeavesTheModelUsable) {
  expect_training_survives([](const InTraining& t) {
    auto [place, thrower] = GetParam();
    t.net.*place = thrower;
    EXPECT_THROW(
        {
          ForwardScope scope(t.group);
          small_loss(t.net, share(1)).backward();
        },
        std::runtime_error);
    t.net.*place = std::identity();
    t.group.reset_iter_state();
    expect_no_gradients(t);
    EXPECT_EQ(t.net.up->weight.size(0), local_rows(t.net.up->weight).count);
  });
}

INSTANTIATE_TEST_SUITE_P(Places, ExceptionInBackward,
                         testing::Combine(testing::Values(&MisuseNetImpl::on_words, &MisuseNetImpl::on_hidden),
                                          testing::Values(throw_in_backward, throw_in_hook)));

TEST(AReset, InsideABackwardIsRefused) {
  expect_training_survives([](const InTraining& t) {
    std::string message;
    t.net.on_words = [&](const Tensor& h) {
      h.register_hook([&](const Tensor&) { message = message_of([&] { t.group.reset_iter_state(); }); });
      return h;
    };
    t.optimizer.zero_grad();
    Tensor loss;
    {
      ForwardScope scope(t.group);
      loss = small_loss(t.net, share(1));
    }
    loss.backward();
    t.net.on_words = std::identity();
    EXPECT_THAT(message, AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/2] reset_iter_state: ")),
                               HasSubstr("inside a backward"), HasSubstr("after backward() has thrown")));
    for (const auto& item : t.net.named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << item.key();
  });
}

TEST(AReset, BetweenIterationsChangesNothing) {
  expect_training_survives([](const InTraining& t) {
    auto gradients = copied_gradients(t);
    t.group.reset_iter_state();
    t.group.reset_iter_state();
    expect_gradients(t, gradients);
  });
}

TEST(AReset, DropsAnIterationWhoseBackwardNeverCame) {
  expect_training_survives([](const InTraining& t) {
    Tensor loss;
    {
      ForwardScope scope(t.group);
      loss = small_loss(t.net, share(1));
    }
    t.group.reset_iter_state();
    EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
  });
}

}  // namespace
}  // namespace fsdp::test
