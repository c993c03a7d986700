#pragma once
/// \file
/// A small model, and functions for tests of mistakes: they train, make a mistake, train on, and compare with an
/// unsharded run.

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "support/oracle.h"

namespace fsdp::test {

/// A net with four param groups: up, mid, down, and the root's (words, norm, head).
struct MisuseNetImpl : torch::nn::Module {
  torch::nn::Embedding words{7, 4};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({4})};
  torch::nn::Linear up{4, 6}, mid{6, 6}, down{6, 4};
  torch::nn::Linear head{torch::nn::LinearOptions(4, 3).bias(false)};
  /// Functions that the user's forward applies to the word vectors (late in backward) and to the last hidden layer
  /// (early in backward).
  std::function<torch::Tensor(const torch::Tensor&)> on_words = std::identity(), on_hidden = std::identity();

  MisuseNetImpl() {
    register_module("words", words);
    register_module("norm", norm);
    register_module("up", up);
    register_module("mid", mid);
    register_module("down", down);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    auto h = on_words(words->forward(ids).mean(1));
    h = torch::tanh(up->forward(norm->forward(h)));
    return head->forward(on_hidden(down->forward(torch::tanh(mid->forward(h)))));
  }
};
TORCH_MODULE(MisuseNet);

inline Group shard(MisuseNetImpl& net) {
  fully_shard(*net.up);
  fully_shard(*net.mid);
  fully_shard(*net.down);
  return fully_shard(static_cast<torch::nn::Module&>(net));
}

/// Returns a layer with the same values on every rank.
inline torch::nn::Linear linear_alike(int64_t in = 4, int64_t out = 4) {
  return build_alike([&] { return torch::nn::Linear(in, out); });
}

inline torch::Tensor small_ids(const Batch& batch) { return labels(batch, {2}, 7); }

inline torch::Tensor small_loss(MisuseNetImpl& net, const Batch& batch) {
  return torch::mse_loss(net.forward(small_ids(batch)), samples(batch, {3}));
}

/// Returns this rank's part of a step's batch.
inline Batch share(int step) { return {step, rank() * 2, 2}; }

inline Training<MisuseNetImpl> small_training() {
  Training<MisuseNetImpl> training;
  training.build = [] { return std::make_shared<MisuseNetImpl>(); };
  training.shard = shard;
  training.loss = small_loss;
  training.steps = 3;
  return training;
}

/// State of one rank between two training steps, for making a mistake.
struct InTraining {
  MisuseNetImpl& net;
  const Group& group;
  torch::optim::Optimizer& optimizer;
  int step = 0;  ///< number of the last training step
  const torch::Tensor& p = net.up->weight;

  std::shared_ptr<MisuseNetImpl> model() const {
    return std::static_pointer_cast<MisuseNetImpl>(net.shared_from_this());
  }
  /// Returns the loss of a forward in its own scope.
  torch::Tensor loss(int of_step = 1) const {
    ForwardScope scope(group);
    return small_loss(net, share(of_step));
  }
};

/// Trains on 2 ranks, and makes the mistake after each of the first `mistakes` steps. Expects the losses and parameters
/// of an unsharded run without mistakes.
inline void expect_training_survives(const std::function<void(const InTraining&)>& mistake, int mistakes = 1) {
  auto training = small_training();
  training.steps = mistakes + 2;
  const auto expected = train_unsharded(training, 2);
  std::vector<std::shared_ptr<MisuseNetImpl>> models{build_model(training), build_model(training)};
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    const auto group = shard(net);
    const auto optimizer = training.optimizer(net.parameters());
    InTraining t{net, group, *optimizer};
    Outcome outcome;
    for (int step = 0; step < training.steps; ++step) {
      optimizer->zero_grad();
      const auto loss = t.loss(step);
      loss.backward();
      optimizer->step();
      outcome.losses.push_back(mean_over_ranks(loss).item<double>());
      t.step = step;
      if (step < mistakes) mistake(t);
    }
    for (const auto& parameter : net.parameters()) outcome.parameters.push_back(full_tensor(parameter));
    expect_same_outcome(expected, outcome, training.tolerance);
  });
}

/// Returns true if `figure` becomes 0 in time. A collective that is under way keeps its buffers a little longer than
/// the group does.
inline bool becomes_zero(const std::function<int64_t()>& figure) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (figure() != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return figure() == 0;
}

/// Returns the message of the exception of type `E` that `act` throws. The test fails if it throws none, or another
/// one.
template <class E = UsageError, class Act>
std::string message_of(const Act& act) {
  try {
    act();
    ADD_FAILURE() << "no exception";
  } catch (const c10::Error& error) {
    EXPECT_NE(dynamic_cast<const E*>(&error), nullptr)
        << "an exception of another type: " << error.what_without_backtrace();
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an exception of another type: " << error.what();
  }
  return {};
}

using Words = std::vector<std::string>;

/// Matches a message that contains all the words. A word that begins with '@' must follow this rank's name.
inline testing::Matcher<std::string> says(const Words& words) {
  std::vector<testing::Matcher<std::string>> all;
  for (const auto& word : words)
    all.push_back(testing::HasSubstr(
        word[0] == '@' ? c10::str("[fsdp rank ", rank(), "/", world_size(), "] ", word.substr(1)) : word));
  return testing::AllOfArray(all);
}

/// Expects that `act` throws an exception of type `E` whose message contains all the words.
template <class E = UsageError, class Act>
void expect_error(const Act& act, const Words& words, int line = __builtin_LINE()) {
  SCOPED_TRACE("the mistake of line " + std::to_string(line));
  EXPECT_THAT(message_of<E>(act), says(words));
}

/// Returns the words of the error for a refused operator: this rank, the operator, the parameter, what was expected and
/// found, and a remedy.
inline Words refusal(const std::string& op, const std::string& parameter, const std::string& remedy) {
  return {"@" + op + ": ", "parameter '" + parameter + "'", "expected", "found", remedy};
}

/// Places in a program where a mistake is made. A mistake that has the same error in several places combines them with
/// |.
enum Where : unsigned {
  kOutside = 1,            ///< The place is outside a forward scope.
  kOutsideUnrecorded = 2,  ///< The place is outside a forward scope, under a torch::NoGradGuard.
  kInScope = 4,            ///< The place is in a scope, before `p` is in memory.
  kInScopeUnrecorded = 8,
  kInMemory = 16,    ///< The place is under a torch::NoGradGuard, in a scope that has read `p`.
  kInBackward = 32,  ///< The place is in a hook of a backward.
  kInTraining = kOutside | kOutsideUnrecorded,
};

struct Mistake {
  unsigned where;
  Words words;
  std::vector<std::function<void(const InTraining&)>> acts;  ///< different acts that must get the same error
};

/// Runs `act` in a hook of a backward that produces all gradients.
inline void in_backward(const InTraining& t, const std::function<void()>& act) {
  bool ran = false;
  t.net.on_words = [&](const torch::Tensor& h) {
    h.register_hook([&](const torch::Tensor&) {
      act();
      ran = true;
    });
    return h;
  };
  t.optimizer.zero_grad();
  t.loss().backward();
  t.net.on_words = std::identity();
  EXPECT_TRUE(ran);
  for (const auto& item : t.net.named_parameters()) EXPECT_TRUE(item.value().grad().defined()) << item.key();
}

/// Makes every mistake in each of its places during training, and expects its error and that training goes on.
template <class E = UsageError>
void expect_refused(const std::vector<Mistake>& mistakes) {
  expect_training_survives([&](const InTraining& t) {
    for (unsigned where = kOutside; where <= kInBackward; where *= 2)
      for (const auto& mistake : mistakes)
        for (size_t i = 0; i < mistake.acts.size() && (mistake.where & where) != 0; ++i) {
          SCOPED_TRACE(c10::str("act ", i, " of those that say '", mistake.words[0], "', place ", where));
          const auto make = [&] { EXPECT_THAT(message_of<E>([&] { mistake.acts[i](t); }), says(mistake.words)); };
          if (where == kInBackward) {
            in_backward(t, make);
            continue;
          }
          const at::AutoGradMode mode((where & (kOutside | kInScope)) != 0);
          std::optional<ForwardScope> scope;
          if (where >= kInScope) scope.emplace(t.group);
          if (where == kInMemory) (void)t.p.sum();
          make();
        }
  });
}

}  // namespace fsdp::test
