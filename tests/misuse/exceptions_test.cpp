// Tests of exceptions from the user's own forward and backward: which calls are refused afterwards, and that training
// goes on after a reset.

#include <stdexcept>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

// A Function that throws in its forward or in its backward.
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

struct Thrower {
  std::function<Tensor(const Tensor&)> MisuseNetImpl::* place;
  Tensor (*act)(const Tensor&);
};

constexpr auto kLate = &MisuseNetImpl::on_words, kEarly = &MisuseNetImpl::on_hidden;  // late or early in backward
const std::vector<Thrower> kForwardThrowers{
    {kLate, throw_now}, {kEarly, throw_now}, {kLate, throw_now_in_function}, {kEarly, throw_now_in_function}};
const std::vector<Thrower> kBackwardThrowers{
    {kLate, throw_in_backward}, {kEarly, throw_in_backward}, {kLate, throw_in_hook}, {kEarly, throw_in_hook}};

// Runs an iteration in which `thrower` throws.
void fail_iteration(const InTraining& t, const Thrower& thrower) {
  t.net.*thrower.place = thrower.act;
  EXPECT_THROW(t.loss().backward(), std::runtime_error);
  t.net.*thrower.place = std::identity();
}

std::vector<Tensor> copied_gradients(const InTraining& t) {
  std::vector<Tensor> gradients;
  for (const auto& p : t.net.parameters()) gradients.push_back(plain_copy(p.grad()));
  return gradients;
}

void expect_gradients(const InTraining& t, const std::vector<Tensor>& expected) {
  EXPECT_TRUE(std::ranges::equal(expected, copied_gradients(t), at::equal));
}

// Expects that a reset has left no gradients, and no memory for gradients or whole parameters.
void expect_nothing_left(const InTraining& t) {
  for (const auto& item : t.net.named_parameters()) EXPECT_FALSE(item.value().grad().defined()) << item.key();
  EXPECT_EQ(t.p.size(0), local_rows(t.p).count);
  EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
  EXPECT_TRUE(becomes_zero([&] { return t.group.stats().gradient.current; }));
}

TEST(AnExceptionInForward, ShowsRowsAgainAndKeepsGradientsWithAndWithoutAReset) {
  for (bool resets : {false, true})
    expect_training_survives(
        [&](const InTraining& t) {
          auto gradients = copied_gradients(t);
          fail_iteration(t, kForwardThrowers[static_cast<size_t>(t.step)]);
          EXPECT_EQ(t.p.size(0), local_rows(t.p).count);
          expect_gradients(t, gradients);
          if (!resets) return;
          t.group.reset_iter_state();
          expect_gradients(t, gradients);
          EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
        },
        4);
}

TEST(AnExceptionInBackward, IsFollowedByAnErrorThatNamesTheReset) {
  expect_training_survives([](const InTraining& t) {
    fail_iteration(t, kBackwardThrowers[0]);
    expect_error([&] { ForwardScope scope(t.group); },
                 {"@forward scope: '", "an earlier backward", "did not finish", "reset_iter_state()", "on every rank"});
    expect_error([&] { auto whole = summon_full_params(t.group); }, {"did not finish"});
    expect_error([&] { LocalRows rows(t.group); }, {"reset_iter_state()"});
    expect_error([&] { clip_grad_norm_(t.group, 1.0); }, {"reset_iter_state()"});
    t.group.reset_iter_state();
  });
}

TEST(ASecondBackward, ThroughAGraphThatIsGoneLeavesTheModelUsableAfterAReset) {
  expect_training_survives([](const InTraining& t) {
    t.optimizer.zero_grad();
    const auto loss = t.loss();
    loss.backward();
    expect_error<c10::Error>([&] { loss.backward(); }, {"a second time"});
    t.group.reset_iter_state();
    expect_nothing_left(t);
  });
}

// A way in which an exception occurs in backward.
struct Failing {
  const char* name;
  void (*fail)(const InTraining& t, const Thrower& thrower);
};
const std::vector<Failing> kFailings{
    {"AfterAnEarlierBackward", fail_iteration},
    {"AfterZeroGrad",
     [](auto& t, auto& thrower) {
       t.optimizer.zero_grad();
       fail_iteration(t, thrower);
     }},
    // If rank 1 throws late, the other rank's backward completes all gradients. If it throws early, the other rank
    // fails, too.
    {"OnOneRank",
     [](auto& t, auto& thrower) {
       if (rank() == 1) t.net.*thrower.place = thrower.act;
       try {
         t.loss().backward();
       } catch (const std::exception&) {
       }
       t.net.*thrower.place = std::identity();
     }},
    {"Twice",
     [](auto& t, auto& thrower) {
       fail_iteration(t, thrower);
       t.group.reset_iter_state();
       fail_iteration(t, thrower);
     }},
    {"InAMicroBatchThatIsNotReduced",
     [](auto& t, auto& thrower) {
       auto guard = t.group.no_sync();
       fail_iteration(t, thrower);
     }},
    {"InsideAScope", [](auto& t, auto& thrower) {
       t.net.*thrower.place = thrower.act;
       const auto iteration = [&] {
         ForwardScope scope(t.group);
         small_loss(t.net, share(1)).backward();
       };
       EXPECT_THROW(iteration(), std::runtime_error);
       t.net.*thrower.place = std::identity();
     }}};

class ExceptionInBackward : public testing::TestWithParam<Failing> {};

TEST_P(ExceptionInBackward, LeavesNothingAfterAReset) {
  expect_training_survives(
      [&](const InTraining& t) {
        GetParam().fail(t, kBackwardThrowers[static_cast<size_t>(t.step)]);
        t.group.reset_iter_state();
        expect_nothing_left(t);
      },
      4);
}

INSTANTIATE_TEST_SUITE_P(Failings, ExceptionInBackward, testing::ValuesIn(kFailings),
                         [](const auto& failing) { return failing.param.name; });

TEST(AReset, BetweenIterationsChangesNothingAndDropsOneWhoseBackwardNeverCame) {
  expect_training_survives([](const InTraining& t) {
    auto gradients = copied_gradients(t);
    t.group.reset_iter_state();
    t.group.reset_iter_state();
    expect_gradients(t, gradients);
    const auto loss = t.loss();
    t.group.reset_iter_state();
    EXPECT_TRUE(becomes_zero([&] { return t.group.stats().whole.current; }));
  });
}

}  // namespace
}  // namespace fsdp::test
