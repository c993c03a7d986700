// Compares stages on several ranks with the whole model on the whole batch, and tests what is refused.

#include <fsdp/fsdp.h>
#include <fsdp/pipeline.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/error_text.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

constexpr int64_t kRows = 7, kTokens = 5;

nn::Sequential make_model() {
  nn::Sequential model;
  model->push_back(nn::Embedding(11, 6));
  for (int i = 0; i < 3; ++i) {
    model->push_back(nn::Linear(6, 6 + i % 2));
    model->push_back(nn::Tanh());
    model->push_back(nn::Linear(6 + i % 2, 6));
  }
  model->push_back(nn::Linear(6, 4));
  model->to(torch::kDouble);
  return model;
}

// Embeds tokens with their positions in the sequence, of which the tokens are a slice.
struct PlacedImpl : nn::Module {
  PlacedImpl() {
    register_module("tokens", tokens);
    register_module("places", places);
  }
  at::Tensor forward(const at::Tensor& text) { return tokens(text) + places(positions(text.size(1))); }
  nn::Embedding tokens{11, 8}, places{8, 8};
};
TORCH_MODULE(Placed);

// Attention with fewer heads of keys than of queries. A test can make it break the rules for slices.
struct BlockImpl : nn::Module {
  explicit BlockImpl(bool checkpointed = false, bool causal = true, bool mixes_without_attention = false)
      : is_checkpointed(checkpointed), is_causal(causal), mixes(mixes_without_attention) {
    register_module("inward", inward);
    register_module("outward", outward);
  }
  at::Tensor attend(const at::Tensor& x) {
    const auto parts = inward(x).unflatten(2, {8, 2}).transpose(1, 2).split_with_sizes({4, 2, 2}, 1);
    const auto output = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, is_causal, {}, true);
    return x + outward(output.transpose(1, 2).flatten(2)).tanh();
  }
  at::Tensor forward(const at::Tensor& x) {
    if (mixes) return x + x.mean(1, true);
    return is_checkpointed ? activation_checkpoint([this](const at::Tensor& input) { return attend(input); }, x)
                           : attend(x);
  }
  nn::Linear inward{8, 16}, outward{8, 8};
  bool is_checkpointed, is_causal, mixes;
};
TORCH_MODULE(Block);

nn::Sequential make_attention_model(bool is_checkpointed) {
  nn::Sequential model((Placed()));
  for (int i = 0; i < 4; ++i) model->push_back(Block(is_checkpointed));
  model->push_back(nn::Linear(8, 4));
  model->to(torch::kDouble);
  return model;
}

struct Step {
  at::Tensor tokens, targets;
};

Step step_of(int number) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + number));
  return {at::randint(11, {kRows, kTokens}, generator), at::randn({kRows, kTokens, 4}, generator, at::kDouble)};
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); }

// Steps of SGD on the whole unsharded model, and their losses.
struct Expected {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
  at::Tensor output;
};

constexpr int kSteps = 3;

Expected expected_of(const std::function<nn::Sequential()>& make, int64_t frozen_layers) {
  auto model = build_alike(make);
  for (int64_t layer = 0; layer < frozen_layers; ++layer)
    for (auto& parameter : model->children()[static_cast<size_t>(layer)]->parameters()) parameter.requires_grad_(false);
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  Expected expected;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto [tokens, targets] = step_of(step);
    const auto loss = loss_of(model->forward(tokens), targets);
    loss.backward();
    optimizer.step();
    expected.losses.push_back(loss.item<double>());
  }
  for (const auto& parameter : model->named_parameters()) expected.parameters[parameter.key()] = parameter.value();
  const at::NoGradGuard no_grad;
  expected.output = model->forward(step_of(0).tokens);
  return expected;
}

struct Case {
  PipelineSchedule schedule;
  int data = 1;  // number of ranks over which each stage is sharded
  int64_t frozen_layers = 0;
  std::function<nn::Sequential()> make = make_model;
};

void expect_equals_whole_model(const Case& given) {
  const auto& schedule = given.schedule;
  SCOPED_TRACE(schedule.name + ", " + std::to_string(schedule.ranks) + " ranks, " +
               std::to_string(schedule.micro_batches) + " micro-batches, " + std::to_string(schedule.chunks) +
               " chunks, data " + std::to_string(given.data) + ", frozen " + std::to_string(given.frozen_layers));
  const auto expected = expected_of(given.make, given.frozen_layers);
  run_thread_ranks(given.data * schedule.ranks, [&](int) {
    const auto mesh = init_device_mesh({given.data, schedule.ranks}, {"data", "pipe"});
    const auto pipe = mesh.process_group("pipe");
    const auto model = build_alike(given.make);
    for (int64_t layer = 0; layer < given.frozen_layers; ++layer)
      for (auto& parameter : model->children()[static_cast<size_t>(layer)]->parameters())
        parameter.requires_grad_(false);
    const auto all = split_stages(model, schedule.stages());
    std::vector<PipelineStage> stages;
    std::vector<nn::Sequential> own;
    for (int stage = pipe->rank(); stage < schedule.stages(); stage += schedule.ranks) {
      own.push_back(all[static_cast<size_t>(stage)]);
      if (given.data == 1) {
        stages.emplace_back(own.back());
        continue;
      }
      FullyShardOptions options;
      options.mesh = mesh["data"];
      stages.emplace_back(fully_shard(own.back(), options));
    }
    std::vector<at::Tensor> parameters;
    for (const auto& stage : own)
      for (const auto& parameter : stage->parameters()) parameters.push_back(parameter);
    torch::optim::SGD optimizer(parameters, 0.5);
    Pipeline pipeline(std::move(stages), schedule, pipe);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      auto [tokens, targets] = step_of(step);
      if (pipe->rank() != 0) tokens = at::Tensor();
      if (pipe->rank() != schedule.rank_of(schedule.stages() - 1)) targets = at::Tensor();
      const auto loss = pipeline.step(tokens, targets, loss_of);
      EXPECT_NEAR(loss.item<double>(), expected.losses[static_cast<size_t>(step)], 1e-10);
      optimizer.step();
    }
    for (const auto& stage : own)
      for (const auto& parameter : stage->named_parameters()) {
        const auto whole = given.data == 1 ? parameter.value() : full_tensor(parameter.value());
        EXPECT_LT(relative_difference(expected.parameters.at(parameter.key()).detach(), whole.detach()), 1e-10)
            << parameter.key();
      }
    const auto output = pipeline.forward(step_of(0).tokens);
    EXPECT_EQ(output.defined(), pipe->rank() == schedule.rank_of(schedule.stages() - 1));
    if (output.defined()) EXPECT_LT(relative_difference(expected.output, output), 1e-10);
  });
}

TEST(Pipeline, TrainsAsTheWholeModel) {
  expect_equals_whole_model({gpipe_schedule(1, 3)});
  expect_equals_whole_model({gpipe_schedule(2, 3)});
  expect_equals_whole_model({gpipe_schedule(3, 7)});
  expect_equals_whole_model({one_forward_one_backward_schedule(2, 3)});
  expect_equals_whole_model({one_forward_one_backward_schedule(3, 2)});
  expect_equals_whole_model({one_forward_one_backward_schedule(4, 5)});
  expect_equals_whole_model({one_forward_one_backward_schedule(1, 4, 2)});
  expect_equals_whole_model({one_forward_one_backward_schedule(2, 4, 3)});
  expect_equals_whole_model({one_forward_one_backward_schedule(3, 3, 2)});
}

TEST(Pipeline, FrozenStagesGiveNoGradients) {
  expect_equals_whole_model({one_forward_one_backward_schedule(3, 4), 1, 4});
  expect_equals_whole_model({gpipe_schedule(2, 2), 1, 1});
}

TEST(Pipeline, StagesAreShardedOverAnotherAxis) {
  expect_equals_whole_model({one_forward_one_backward_schedule(2, 3), 2});
  expect_equals_whole_model({gpipe_schedule(2, 3), 2, 1});
  expect_equals_whole_model({one_forward_one_backward_schedule(2, 2, 2), 2});
}

TEST(Pipeline, SlicesOfTokensTrainAsTheWholeSequence) {
  for (const bool is_checkpointed : {false, true}) {
    const auto make = [is_checkpointed] { return make_attention_model(is_checkpointed); };
    expect_equals_whole_model({terapipe_schedule(1, 1, {2, 3}), 1, 0, make});
    expect_equals_whole_model({terapipe_schedule(2, 2, {3, 1, 1}), 1, 0, make});
    expect_equals_whole_model({terapipe_schedule(3, 3, {1, 1, 1, 2}), 1, 3, make});
    expect_equals_whole_model({terapipe_schedule(2, 2, {2, 2, 1}), 2, 0, make});
  }
}

std::string str_of(const SliceTuning& tuning) {
  std::ostringstream text;
  text << tuning;
  return text.str();
}

// Any measured times will do. The plan must fit the sequence, and be the same on all ranks.
TEST(Pipeline, TunesSlicesAndGoesOverToThem) {
  run_thread_ranks(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"data", "pipe"});
    const auto pipe = mesh.process_group("pipe");
    const auto stage =
        split_stages(build_alike([] { return make_attention_model(false); }), 2)[static_cast<size_t>(pipe->rank())];
    Pipeline pipeline({PipelineStage(stage)}, gpipe_schedule(2, 3), pipe);
    const auto tokens = pipe->rank() == 0 ? at::randint(11, {2, 8}) : at::Tensor();
    const auto tuning = pipeline.tune(tokens, {.granularity = 2, .all_ranks = default_process_group()});
    EXPECT_EQ(pipeline.schedule().slices, 1);
    EXPECT_EQ(tuning.micro_batches, 3);
    EXPECT_LE(tuning.plan.seconds, tuning.whole_seconds * (1 + 1e-9));
    auto lengths = at::tensor(tuning.plan.lengths);
    EXPECT_EQ(lengths.sum().item<int64_t>(), 8);
    EXPECT_TRUE(all_gather(lengths).eq(lengths).all().item<bool>()) << rank;
    const auto batch = pipe->rank() == 0 ? at::randint(11, {3, 8}) : at::Tensor();
    const auto whole = pipeline.forward(batch);
    pipeline.set_schedule(
        terapipe_schedule(2, 3, tuning.plan.lengths.size() > 1 ? tuning.plan.lengths : std::vector<int64_t>{4, 4}));
    const auto sliced = pipeline.forward(batch);
    if (whole.defined()) EXPECT_LT(relative_difference(whole, sliced), 1e-10);
  });
  EXPECT_EQ(str_of(SliceTuning{{{24, 20}, 0.0012}, 0.0015, 0.031, 4}),
            "2 slices of 24, 20 tokens: forward of 4 micro-batches should take 1.2 ms, and 1.5 ms with whole sequences "
            "(the fitted costs differ from measurements by at most 3.1 %)");
  EXPECT_THAT(
      str_of(SliceTuning{{{44}, 0.0015}, 0.0015}),
      testing::HasSubstr("1 slice of 44 tokens: forward of 1 micro-batch should take 1.5 ms. Slicing does not pay"));
}

TEST(Pipeline, WhatCannotBeTunedIsRefused) {
  run_thread_ranks(2, [](int) {
    const PipelineStage same([](const at::Tensor& x) { return x; });
    const auto error_of = [](Pipeline& pipeline, const at::Tensor& batch) {
      return text_of_error([&] { pipeline.tune(batch); });
    };
    Pipeline chunked({same, same}, one_forward_one_backward_schedule(2, 2, 2)), plain({same}, gpipe_schedule(2, 2));
    EXPECT_THAT(error_of(chunked, at::ones({2, 8})), testing::HasSubstr("expected one stage on each rank, found 2"));
    EXPECT_THAT(error_of(plain, at::ones({2})), testing::HasSubstr("expected inputs with tokens along dim 1"));
    EXPECT_THAT(text_of_error([&] { plain.set_schedule(gpipe_schedule(3, 2)); }),
                testing::HasSubstr("a schedule for the 2 ranks of the axis, found a schedule for 3"));
    EXPECT_EQ(plain.schedule().ranks, 2);
    Pipeline mixing({PipelineStage([](const at::Tensor& x) { return x + x.mean(1, true); })}, gpipe_schedule(2, 2));
    EXPECT_THAT(error_of(mixing, at::rand({2, 16})),
                testing::HasSubstr("gives different results for slices of a sequence than for the whole sequence"));
  });
}

TEST(Pipeline, StagesComputeActivationsAgain) {
  const auto make = [] { return make_attention_model(true); };
  expect_equals_whole_model({gpipe_schedule(2, 3), 1, 0, make});
  expect_equals_whole_model({one_forward_one_backward_schedule(3, 4), 1, 0, make});
  expect_equals_whole_model({one_forward_one_backward_schedule(2, 2, 2), 2, 0, make});
}

TEST(Pipeline, TrainsOnAMeshOfDataPipeSequenceAndTensor) {
  const auto make = [] { return make_attention_model(false); };
  const auto batch = [](int step) {
    const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
    return Step{at::randint(11, {4, 8}, generator), at::randn({4, 8, 4}, generator, at::kDouble)};
  };
  auto whole = build_alike(make);
  torch::optim::SGD of_whole(whole->parameters(), 0.5);
  for (int step = 0; step < kSteps; ++step) {
    of_whole.zero_grad();
    loss_of(whole->forward(batch(step).tokens), batch(step).targets).backward();
    of_whole.step();
  }
  const auto expected = whole->named_parameters();
  run_thread_ranks(8, [&](int) {
    const auto mesh = init_device_mesh({2, 2, 2, 1}, {"data", "pipe", "sequence", "tensor"});
    const auto pipe = mesh.process_group("pipe");
    auto layers = split_stages(build_alike(make), 2)[static_cast<size_t>(pipe->rank())];
    FullyShardOptions options;
    options.mesh = mesh[{"data", "sequence"}].flatten("shard");
    Pipeline pipeline({PipelineStage(fully_shard(layers, options))}, one_forward_one_backward_schedule(2, 2), pipe);
    torch::optim::SGD optimizer(layers->parameters(), 0.5);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const SequenceParallel sequence(mesh.process_group("sequence"));
      const auto own = [&](const at::Tensor& rows) {
        return sequence.shard(rows.narrow(0, 2 * mesh.coordinate("data"), 2), 1);
      };
      pipeline.step(own(batch(step).tokens), own(batch(step).targets), [](const auto& output, const auto& target) {
        return sequence_mean((output - target).square().sum(), at::scalar_tensor(output.numel(), at::kDouble));
      });
      optimizer.step();
    }
    for (const auto& parameter : layers->named_parameters())
      EXPECT_LT(relative_difference(expected[parameter.key()].detach(), full_tensor(parameter.value()).detach()), 1e-10)
          << parameter.key();
  });
}

TEST(Pipeline, WhatMixesTokensOtherwiseCannotRunInSlices) {
  struct Refused {
    std::function<at::Tensor(const at::Tensor&)> stage;
    std::string message;
  };
  const auto of = [](Block block) { return [block](const at::Tensor& x) mutable { return block(x); }; };
  for (const auto& refused : std::vector<Refused>{
           {of(Block(false, false)),
            "expected causal attention in a model that runs slice by slice, found attention to later"},
           {of(Block(false, true, true)),
            "gives different results for slices of a sequence than for the whole sequence"},
           {[](const at::Tensor& x) { return x + at::arange(x.size(1)).unsqueeze(1); }, "fsdp::positions"},
           {[](const at::Tensor& x) {
              return at::scaled_dot_product_attention(x, x, x, at::ones({x.size(1), x.size(1)}, at::kBool));
            },
            "slice by slice, found a mask"},
           {[](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x, {}, 0.5, true); },
            "dropout inside attention is not supported"}})
    run_thread_ranks(2, [&](int rank) {
      const PipelineStage::Forward same = [](const at::Tensor& x) { return x; };
      Pipeline pipeline({PipelineStage(rank == 1 ? refused.stage : same)}, terapipe_schedule(2, 1, {2, 1}));
      EXPECT_THAT(text_of_error([&] { pipeline.forward(at::rand({2, 3, 8})); }), testing::HasSubstr(refused.message));
    });
  run_thread_ranks(2, [](int) {
    Pipeline pipeline({PipelineStage([](const at::Tensor& x) { return at::dropout(x, 0.5, true); })},
                      terapipe_schedule(2, 1, {2, 1}));
    pipeline.forward(at::ones({2, 3, 8}));  // drawing random numbers is not refused
    EXPECT_THAT(
        text_of_error([&] { pipeline.forward(at::ones({2, 4, 8})); }),
        testing::HasSubstr("expected sequences of 3 tokens along dim 1, as many as the 2 slices have, found 4"));
  });
}

// A failure on one rank is an error on all ranks, after which the ranks can go on.
TEST(Pipeline, WhatFailsOnOneRankEndsTheStepOnAll) {
  struct Wrong {
    std::string message;  // on the rank that finds the error, or on all ranks if nothing was sent
    int finder = -1;      // -1: all ranks
    std::function<at::Tensor(int rank, const at::Tensor&)> stage = {};
    Pipeline::Loss loss = loss_of;
    at::Tensor inputs = at::ones({4, 3}), targets = at::ones({4, 3});
  };
  const std::vector<Wrong> all = {
      {"expected inputs of 1 to 13 dims", -1, {}, loss_of, {}},
      {"expected at least one row for each of the 2 micro-batches, found 1", -1, {}, loss_of, at::ones({1, 3})},
      {"expected targets of 4 rows, as many as the inputs have, found sizes [3]",
       2,
       {},
       loss_of,
       at::ones({4, 3}),
       at::ones({3})},
      {"expected targets of 4 rows", 2, {}, loss_of, at::ones({4, 3}), {}},
      {"the middle breaks", 1,
       [](int rank, const auto& x) -> at::Tensor {
         if (rank == 1) throw std::runtime_error("the middle breaks");
         return x * 2;
       }},
      {"mat1 and mat2 shapes cannot be multiplied", 1,  // stages that do not fit each other
       [](int rank, const auto& x) { return rank == 1 ? at::linear(x, at::ones({3, 5})) : x; }},
      {"expected a tensor from stage 0", 0, [](int rank, const auto& x) { return rank == 0 ? at::Tensor() : x; }},
      {"expected a loss of one element, found sizes [2, 3]",
       2,
       {},
       [](const auto& output, const auto&) { return output * 1; }},
      {"stage 0 gave a tensor of 14 dims, expected at most 13", 0,
       [](int, const auto& x) { return x.view({2, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}); }, loss_of,
       at::ones({4, 1, 3})}};
  run_thread_ranks(3, [&](int rank) {
    auto weight = at::ones({3}).requires_grad_();
    const auto plain = [&](const at::Tensor& x) { return x * weight; };
    const Wrong* current = nullptr;
    Pipeline pipeline({PipelineStage([&](const at::Tensor& x) -> at::Tensor {
                        return current != nullptr && current->stage ? current->stage(rank, plain(x)) : plain(x);
                      })},
                      one_forward_one_backward_schedule(3, 2));
    for (const auto& wrong : all) {
      current = &wrong;
      const auto text = text_of_error([&] { pipeline.step(wrong.inputs, wrong.targets, wrong.loss); });
      EXPECT_THAT(text, testing::HasSubstr(wrong.message)) << "rank " << rank;
      if (wrong.finder < 0) continue;
      if (wrong.finder != rank) EXPECT_THAT(text, testing::HasSubstr("rank " + std::to_string(wrong.finder)));
      pipeline.reset_iter_state();
      current = nullptr;
      EXPECT_NEAR(pipeline.step(at::ones({4, 3}), at::zeros({4, 3}), loss_of).item<double>(), 1, 1e-6);
    }
  });
}

// The error travels over the axis of the stages, and then over that of the ranks that share a stage.
TEST(Pipeline, WhatFailsOnOneRankEndsTheStepOnAllAxes) {
  run_thread_ranks(4, [](int rank) {
    const auto mesh = init_device_mesh({2, 2}, {"data", "pipe"});
    FullyShardOptions options;
    options.mesh = mesh["data"];
    auto layer = build_alike([] { return nn::Linear(3, 3); });
    const auto stage = fully_shard(layer, options);
    Pipeline pipeline({PipelineStage(stage)}, one_forward_one_backward_schedule(2, 2), mesh.process_group("pipe"));
    const auto text = text_of_error([&] {
      pipeline.step(at::ones({4, 3}), at::ones({4, 3}), [&](const at::Tensor& output, const at::Tensor& target) {
        if (rank == 3) throw std::runtime_error("rank 3 has no loss");
        return loss_of(output, target);
      });
    });
    EXPECT_THAT(text, testing::HasSubstr("rank 3 has no loss")) << "rank " << rank;
    pipeline.reset_iter_state();
    const auto before = stage.stats().reductions;
    EXPECT_GT(pipeline.step(at::ones({4, 3}), at::ones({4, 3}), loss_of).item<double>(), 0);
    EXPECT_EQ(stage.stats().reductions, before + 1);  // with the last micro-batch
  });
}

TEST(Pipeline, AStageThatDoesNotTakeWhatTheOneBeforeGivesIsNamedWithItsInput) {
  run_thread_ranks(2, [](int rank) {
    const torch::nn::Sequential layers(torch::nn::Linear(rank == 0 ? 8 : 6, 8));
    Pipeline pipeline({PipelineStage(layers)}, gpipe_schedule(2, 2));
    const auto inputs = torch::ones({4, 8});
    EXPECT_THAT(text_of_error([&] {
                  pipeline.step(inputs, inputs, [](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
                }),
                testing::HasSubstr("in stage 1 of the pipeline, whose input is Float of sizes [2, 8]"));
  });
}

TEST(Pipeline, WhatDoesNotFitIsRefusedBeforeAStep) {
  run_thread_ranks(2, [](int rank) {
    const PipelineStage stage([](const at::Tensor& x) { return x; });
    const auto error_of = [&](std::vector<PipelineStage> stages, const PipelineSchedule& schedule) {
      return text_of_error([&] { Pipeline(std::move(stages), schedule); });
    };
    EXPECT_THAT(error_of({stage}, gpipe_schedule(3, 2)),
                testing::HasSubstr("a schedule for the 2 ranks of the axis, found a schedule for 3"));
    EXPECT_THAT(error_of({stage}, one_forward_one_backward_schedule(2, 2, 2)),
                testing::HasSubstr("expected the 2 stages of rank"));
    auto deadlocked = gpipe_schedule(2, 2);
    std::ranges::reverse(deadlocked.actions[0]);
    EXPECT_THAT(error_of({stage}, deadlocked), testing::HasSubstr("wait for one another forever"));
    EXPECT_THAT(error_of({stage}, rank == 0 ? gpipe_schedule(2, 2) : one_forward_one_backward_schedule(2, 2)),
                testing::AllOf(testing::HasSubstr("Pipeline of GPipe"), testing::HasSubstr("Pipeline of 1F1B")));
  });
}

TEST(Pipeline, AStageThatGivesOtherSizesForTheSameInputsIsRefused) {
  run_thread_ranks(2, [](int rank) {
    int64_t width = 3;
    Pipeline pipeline({PipelineStage([&](const at::Tensor& x) { return rank == 0 ? x.narrow(1, 0, width) : x; })},
                      gpipe_schedule(2, 2));
    const auto x = at::ones({4, 3});
    EXPECT_EQ(pipeline.forward(x).defined(), rank == 1);
    width = 2;
    EXPECT_THAT(
        text_of_error([&] { pipeline.forward(x); }),
        testing::HasSubstr("stage 0 gave Float of sizes [2, 2] (requires no gradient) for micro-batch 0, but gave "
                           "Float of sizes [2, 3]"));
    pipeline.reset_iter_state();
    EXPECT_EQ(pipeline.forward(x).defined(), rank == 1);
  });
}

TEST(SplitStages, BalancesParametersAndKeepsNames) {
  const auto model = make_model();  // of 66; 42, 0, 42; 49, 0, 48; 42, 0, 42; 28 elements
  std::vector<std::string> names;
  std::vector<int64_t> layers;
  for (const auto& stage : split_stages(model, 3)) {
    layers.push_back(static_cast<int64_t>(stage->size()));
    for (const auto& parameter : stage->named_parameters()) names.push_back(parameter.key());
  }
  EXPECT_EQ(names, model->named_parameters().keys());
  EXPECT_THAT(layers, testing::ElementsAre(3, 4, 4));
  EXPECT_EQ(split_stages_before(model, {1, 10})[1]->size(), 9U);
  EXPECT_THAT(text_of_error([&] { split_stages(model, 12); }),
              testing::HasSubstr("from 1 to 11, the number of the model's layers, found 12"));
  EXPECT_THAT(text_of_error([&] { split_stages_before(model, {4, 4}); }),
              testing::HasSubstr("each at least 1 and less than 11, the number of the model's layers, found 4"));
  const nn::Linear shared(3, 3);
  const nn::Sequential tied(shared, nn::ReLU(), shared);
  EXPECT_THAT(text_of_error([&] { split_stages_before(tied, {1}); }),
              testing::HasSubstr("parameter '2.weight' of stage 1 is also '0.weight' of stage 0"));
}

}  // namespace
}  // namespace fsdp::test
