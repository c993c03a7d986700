#pragma once
/// \file
/// A small model, and the frame of every test about mistakes: train, make the mistake, train on, compare with the
/// oracle.

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <thread>

#include "support/oracle.h"

namespace fsdp::test {

/// Four groups: up, mid, down, and the rest (words, norm, head).
struct MisuseNetImpl : torch::nn::Module {
  torch::nn::Embedding words{7, 4};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({4})};
  torch::nn::Linear up{4, 6}, mid{6, 6}, down{6, 4};
  torch::nn::Linear head{torch::nn::LinearOptions(4, 3).bias(false)};
  /// What the user's forward does with the word vectors (late in backward) and with the last hidden layer (early).
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

inline torch::Tensor small_ids(const Batch& batch) { return labels(batch, {2}, 7); }

inline torch::Tensor small_loss(MisuseNetImpl& net, const Batch& batch) {
  return torch::mse_loss(net.forward(small_ids(batch)), samples(batch, {3}));
}

/// This rank's share of a step's batch.
inline Batch share(int step) { return {step, rank() * 2, 2}; }

inline Training<MisuseNetImpl> small_training() {
  Training<MisuseNetImpl> training;
  training.build = [] { return std::make_shared<MisuseNetImpl>(); };
  training.shard = shard;
  training.loss = small_loss;
  training.steps = 3;
  return training;
}

/// What a mistake can be made with, on one rank, between two steps of training.
struct InTraining {
  MisuseNetImpl& net;
  const Group& group;
  torch::optim::Optimizer& optimizer;
};

/// Trains on 2 ranks, makes the mistake after the first step, and expects the losses and parameters of the unsharded
/// run that made none.
inline void expect_training_survives(const std::function<void(const InTraining&)>& mistake) {
  auto training = small_training();
  auto expected = train_unsharded(training, 2);
  std::vector<std::shared_ptr<MisuseNetImpl>> models{build_model(training), build_model(training)};
  run_thread_ranks(2, [&](int r) {
    auto& net = *models[static_cast<size_t>(r)];
    auto group = shard(net);
    auto optimizer = training.optimizer(net.parameters());
    Outcome outcome;
    for (int step = 0; step < training.steps; ++step) {
      optimizer->zero_grad();
      torch::Tensor loss;
      {
        ForwardScope scope(group);
        loss = small_loss(net, share(step));
      }
      loss.backward();
      optimizer->step();
      auto mean = loss.detach().clone().reshape({1});
      default_process_group()->communicator().all_reduce(mean, ReduceOp::kSum, {"loss", {}})->wait();
      outcome.losses.push_back(mean.item<double>() / 2);
      if (step == 0) mistake({net, group, *optimizer});
    }
    for (const auto& parameter : net.parameters()) outcome.parameters.push_back(full_tensor(parameter));
    expect_same_outcome(expected, outcome, training.tolerance);
  });
}

/// Whether a figure becomes 0: a collective that is under way holds its buffers after the group has let them go.
inline bool becomes_zero(const std::function<int64_t()>& figure) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (figure() != 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return figure() == 0;
}

/// The message of the exception of type `E` that `act` throws; a failed test if it throws none or another.
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

/// Holds for a message that names this rank, the operation, the parameter, what was expected and found, and a remedy.
inline testing::Matcher<std::string> refuses(const std::string& operation, const std::string& parameter,
                                             const std::string& remedy) {
  using testing::HasSubstr;
  return testing::AllOf(HasSubstr(c10::str("[fsdp rank ", rank(), "/", world_size(), "] ", operation, ": ")),
                        HasSubstr("parameter '" + parameter + "'"), HasSubstr("expected"), HasSubstr("found"),
                        HasSubstr(remedy));
}

}  // namespace fsdp::test
