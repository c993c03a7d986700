// Tests that Trainer trains as a loop does that is written by hand, reports what it does, and resumes where it was.

#include <ATen/autocast_mode.h>
#include <fsdp/parameters.h>
#include <fsdp/pipeline.h>
#include <fsdp/trainer.h>
#include <signal.h>
#include <torch/nn/utils/clip_grad.h>

#include "state/trainee.h"

namespace fsdp::test {
namespace {

using SmallModel = Sharded<std::shared_ptr<SmallNetImpl>>;

constexpr int64_t kSamples = 2;

// Returns five batches of this rank, which differ between epochs.
std::vector<Batch> batches_of(int64_t epoch) {
  std::vector<Batch> batches;
  for (int i = 0; i < 5; ++i) batches.push_back({static_cast<int>(10 * epoch) + i, rank() * kSamples, kSamples});
  return batches;
}

Tensor loss_of_batch(SmallModel& model, const Batch& batch) {
  const auto dtype = model->head->weight.scalar_type();
  return torch::mse_loss(model(samples(batch, {5}, dtype)), samples(batch, {3}, dtype));
}

// The results of a training, which are the same on every rank.
struct Left {
  std::vector<double> losses;
  std::vector<Tensor> values;
};

optim::AdamW adamw(const SmallModel& model) {
  return optim::AdamW(model.parameters(), torch::optim::AdamWOptions(1e-2));
}

struct Fit {
  Trainer trainer;
  SmallModel model;
  optim::AdamW optimizer;

  explicit Fit(const TrainerOptions& options = {}, c10::ScalarType dtype = torch::kDouble)
      : trainer(options), model(trainer.shard(alike_small_net(dtype))), optimizer(adamw(model)) {}
  bool run(const auto& data, const auto& loss) { return trainer.fit(model, optimizer, data, loss); }
};

// Returns the results of `train` on rank 0.
Left left_of(int world, const std::function<Left()>& train) {
  Left left;
  run_thread_ranks(world, [&](int r) {
    auto own = train();
    if (r == 0) left = std::move(own);
  });
  return left;
}

Left train_by_trainer(int world, const TrainerOptions& options, c10::ScalarType dtype = torch::kDouble) {
  return left_of(world, [&] {
    Fit fit(options, dtype);
    Left left;
    fit.trainer.add({.on_step_end = [&](const StepReport& report) { left.losses.push_back(report.mean_loss()); }});
    EXPECT_TRUE(fit.run(batches_of, loss_of_batch));
    left.values = whole_values(*fit.model.module());
    return left;
  });
}

Left train_by_hand(int world, const TrainerOptions& options, c10::ScalarType dtype = torch::kDouble) {
  return left_of(world, [&] {
    SmallModel model = fully_shard(alike_small_net(dtype), options.sharding);
    auto optimizer = adamw(model);
    GradScalerOptions scaling = options.scaler;
    scaling.enabled = options.precision == Precision::kFloat16;
    GradScaler scaler(scaling);
    Left left;
    for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
      const auto batches = batches_of(epoch);
      for (size_t first = 0; first < batches.size(); first += static_cast<size_t>(options.accumulate)) {
        const size_t last = std::min(batches.size(), first + static_cast<size_t>(options.accumulate));
        optimizer.zero_grad();
        double sum = 0;
        for (size_t i = first; i < last; ++i) {
          model.set_requires_gradient_sync(i + 1 == last);
          const auto loss = loss_of_batch(model, batches[i]) / static_cast<int64_t>(last - first);
          scaler.scale(loss).backward();
          sum += loss.item<double>();
        }
        if (options.max_grad_norm) {
          scaler.unscale_(optimizer);
          clip_grad_norm_(model, *options.max_grad_norm);
        }
        scaler.step(optimizer);
        scaler.update();
        left.losses.push_back(mean(sum));
      }
    }
    left.values = whole_values(*model.module());
    return left;
  });
}

void expect_same_left(const Left& expected, const Left& found) {
  EXPECT_EQ(expected.losses, found.losses);
  expect_same_values(expected.values, found.values);
}

TEST(Trainer, TrainsAsTheLoopByHandToTheBit) {
  for (const int world : worlds_up_to(3)) {
    const auto left = train_by_trainer(world, {.epochs = 2});
    expect_same_left(train_by_hand(world, {.epochs = 2}), left);
    EXPECT_EQ(left.losses.size(), 10U);
  }
  const TrainerOptions options{.epochs = 2, .accumulate = 2, .max_grad_norm = 0.01};
  const auto left = train_by_trainer(2, options);
  expect_same_left(train_by_hand(2, options), left);
  EXPECT_EQ(left.losses.size(), 6U) << "of two, two and one batch in each epoch";
  EXPECT_NE(left.losses, train_by_trainer(2, {.epochs = 2, .accumulate = 2}).losses) << "gradients were clipped";
}

TEST(Trainer, ScalesLossesOfFp16AsTheLoopByHand) {
  // At first the scale is too large, so steps are skipped until it fits.
  TrainerOptions options{.precision = Precision::kFloat16, .scaler = {.init_scale = 1e9}, .epochs = 3};
  const auto left = train_by_trainer(2, options, torch::kFloat);
  options.sharding.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kHalf, .output_dtype = torch::kFloat};
  expect_same_left(train_by_hand(2, options, torch::kFloat), left);
  EXPECT_NE(left.losses, train_by_trainer(2, {.epochs = 3}, torch::kFloat).losses);
}

TEST(Trainer, StrategiesAndMeshesAreOptionsAndTrainToTheSameBits) {
  const auto expected = train_by_trainer(4, {});
  for (const Strategy strategy : {Strategy::kShardGradOp, Strategy::kReplicate})
    expect_same_left(expected, train_by_trainer(4, {.sharding = {.strategy = strategy}}));
  run_thread_ranks(4, [](int) {
    const auto rows = [](const auto& model) { return model.stats().rows_numel; };
    const auto by_hand =
        fully_shard(alike_small_net(torch::kDouble), {.mesh = init_device_mesh({2, 2}, {"replicate", "shard"})});
    EXPECT_EQ(rows(Trainer({.mesh_shape = {2, 2}}).shard(alike_small_net(torch::kDouble))), rows(by_hand));
    EXPECT_LT(rows(Trainer({.mesh_shape = {4}}).shard(alike_small_net(torch::kDouble))), rows(by_hand));
  });
}

TEST(Trainer, RowsAreSharedOutOverTheAxesOfDataAndSequences) {
  run_thread_ranks(4, [](int) {
    const auto rows = [](const TrainerOptions& options) {
      return Trainer(options).shard(alike_small_net(torch::kDouble)).stats().rows_numel;
    };
    const auto of_two = rows({.mesh_shape = {2, 2}}), of_four = rows({});
    EXPECT_EQ(rows({.mesh_shape = {2, 2}, .mesh_dim_names = {"pipe", "data"}}), of_two);
    EXPECT_EQ(rows({.mesh_shape = {2, 2}, .mesh_dim_names = {"tensor", "data"}}), of_two);
    EXPECT_EQ(rows({.mesh_shape = {2, 2}, .mesh_dim_names = {"sequence", "data"}}), of_four);
  });
}

TEST(Trainer, StagesTrainAsTheWholeModel) {
  const auto build = [] {
    return build_alike([] {
      torch::nn::Sequential model(torch::nn::Linear(5, 4), torch::nn::Tanh(), torch::nn::Linear(4, 3));
      model->to(torch::kDouble);
      return model;
    });
  };
  const auto loss_of = [](const Tensor& output, const Tensor& target) { return torch::mse_loss(output, target); };
  const auto samples_of = [](int64_t first, int64_t count, int64_t width) {
    return torch::arange(first * width, (first + count) * width, torch::kDouble).view({count, width}).sin();
  };
  constexpr double kNorm = 0.05;  // smaller than the norm of any step
  auto whole = build();
  torch::optim::SGD of_whole(whole->parameters(), 0.5);
  std::vector<double> losses;
  for (int64_t step = 0; step < 3; ++step) {
    of_whole.zero_grad();
    const auto loss = loss_of(whole->forward(samples_of(8 * step, 8, 5)), samples_of(8 * step, 8, 3));
    loss.backward();
    EXPECT_GT(torch::nn::utils::clip_grad_norm_(whole->parameters(), kNorm), kNorm);
    of_whole.step();
    losses.push_back(loss.item<double>());
  }
  const auto expected = whole->named_parameters();
  const TemporaryFolder folder;
  // The last step is trained by a training that resumes from the checkpoint of the steps before.
  const auto train = [&](int64_t steps) {
    Trainer trainer({.mesh_shape = {2, 2},
                     .mesh_dim_names = {"pipe", "data"},
                     .steps = steps,
                     .accumulate = 2,
                     .max_grad_norm = kNorm,
                     .save = {.folder = folder.path()},
                     .resume = folder.path()});
    const auto& mesh = trainer.mesh();
    auto model = trainer.shard(split_stages(build(), 2)[static_cast<size_t>(mesh.coordinate("pipe"))]);
    Pipeline pipeline({PipelineStage(model)}, one_forward_one_backward_schedule(2, 2), mesh.process_group("pipe"));
    trainer.set_pipeline(pipeline);
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    // A step has two batches, each with the samples of two ranks.
    std::vector<int64_t> firsts;
    for (int64_t batch = 0; batch < 6; ++batch) firsts.push_back(4 * batch + 2 * mesh.coordinate("data"));
    std::vector<double> found;
    trainer.add({.on_step_end = [&](const StepReport& report) { found.push_back(report.mean_loss()); }});
    trainer.fit(model, optimizer, firsts, [&](auto&, int64_t first, double weight) {
      return pipeline.step(
                 samples_of(first, 2, 5), samples_of(first, 2, 3),
                 [&](const Tensor& output, const Tensor& target) { return weight * loss_of(output, target); }) /
             weight;
    });
    for (auto loss = losses.begin() + steps - std::ssize(found); const double own : found)
      EXPECT_NEAR(own, *loss++, 1e-10);
    if (steps < 3) return;
    EXPECT_EQ(found.size(), 1U);
    for (const auto& parameter : model->named_parameters())
      EXPECT_TRUE(torch::allclose(full_tensor(parameter.value()), expected[parameter.key()], 1e-9, 1e-9))
          << parameter.key();
  };
  for (const int64_t steps : {2, 3}) run_thread_ranks(4, [&](int) { train(steps); });
}

TEST(Trainer, AutocastHoldsInTheLossAndInTestsAlone) {
  run_thread_ranks(1, [](int) {
    at::autocast::set_autocast_dtype(torch::kCPU, torch::kHalf);
    Fit fit({.autocast = true}, torch::kFloat);
    const auto in_bf16 = [](SmallModel& net, const Batch& batch) {
      EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::kCPU));
      EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
      return loss_of_batch(net, batch);
    };
    fit.run(batches_of, in_bf16);
    fit.trainer.test(fit.model, batches_of,
                     [&](SmallModel& net, const Batch& batch) -> std::vector<Tensor> { return {in_bf16(net, batch)}; });
    EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kHalf) << "as it was before";
  });
}

TEST(Trainer, ActivationCheckpointingByTypesIsAnOption) {
  run_thread_ranks(2, [](int) {
    Trainer trainer({.activation_checkpointing = activation_checkpointing_of<torch::nn::FunctionalImpl>()});
    int calls = 0;
    const torch::nn::Functional counted([&](const Tensor& x) { return ++calls, torch::tanh(x); });
    torch::nn::Sequential net(build_alike([] { return torch::nn::Linear(5, 5); }), counted);
    auto model = trainer.shard(net);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    trainer.fit(model, optimizer, std::vector<int>{1},
                [](auto& sequential, int) { return sequential(torch::ones({2, 5})).square().mean(); });
    EXPECT_EQ(calls, 2) << "once in forward, once in backward";
  });
}

TEST(Trainer, CallsCallbacksInTheirOrder) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    Fit fit({.epochs = 2, .accumulate = 3, .save = {.folder = folder.path(), .every = 3}});
    auto& trainer = fit.trainer;
    std::vector<std::string> told;
    const auto note = [&told](const char* what) {
      return [&told, what](const TrainingPlace& at) {
        told.push_back(c10::str(what, " ", at.epoch, " ", at.batches, " ", at.step));
      };
    };
    trainer.add({.on_epoch_start = note("epoch"),
                 .on_step_start = note("step"),
                 .on_step_end = [&](const StepReport& report) { note("done")(report.place); },
                 .on_save = [&](SaveOptions& options) { told.push_back(c10::str("save ", options.step)); },
                 .on_saved = note("saved"),
                 .on_epoch_end = note("end")});
    trainer.add({.on_epoch_end = [&](const TrainingPlace&) { told.emplace_back("the second's"); }});
    EXPECT_TRUE(fit.run(batches_of, loss_of_batch));
    EXPECT_THAT(told, ElementsAre("epoch 0 0 0", "step 0 0 0", "done 0 3 1", "step 0 3 1", "done 0 5 2", "end 0 5 2",
                                  "the second's", "epoch 1 0 2", "step 1 0 2", "done 1 3 3", "save 3", "saved 1 3 3",
                                  "step 1 3 3", "done 1 5 4", "save 4", "saved 1 5 4", "end 1 5 4", "the second's"));
    EXPECT_EQ(trainer.place(), (TrainingPlace{.epoch = 2, .batches = 0, .step = 4}));
  });
}

// Trains with checkpoints in `folder`, and calls `ending` after step `last`. If `last` is 0, trains to the end of two
// epochs.
Left train_saving(const TemporaryFolder& folder, int world, int64_t last, bool async,
                  const std::function<void(Trainer&)>& ending) {
  return left_of(world, [&] {
    Fit fit({.epochs = 2,
             .save = {.folder = folder.path(), .every = 4, .keep = 1, .async = async},
             .resume = folder.path()});
    auto& trainer = fit.trainer;
    torch::optim::StepLR schedule(fit.optimizer, 1, 0.5);
    trainer.add({.on_resume = [&](const LoadedCheckpoint& loaded,
                                  TrainingPlace&) { load_state(schedule, loaded.states.at("schedule")); },
                 .on_step_end =
                     [&](const StepReport& report) {
                       if (report.place.step == last) ending(trainer);
                     },
                 .on_save = [&](SaveOptions& options) { options.states["schedule"] = state_of(schedule); },
                 .on_epoch_end = [&](const TrainingPlace&) { schedule.step(); }});
    EXPECT_EQ(fit.run(batches_of, loss_of_batch), last == 0);
    return Left{{}, whole_values(*fit.model.module())};
  });
}

// stop(), or a signal to one rank, stops the training of all ranks after the step, and a checkpoint of that step
// remains.
TEST(Trainer, StoppedAnywhereItGoesOnBitForBit) {
  const TemporaryFolder whole;
  const auto expected = train_saving(whole, 2, 0, false, {});
  const auto stop = [](Trainer& trainer) { trainer.stop(); };
  const auto terminate = [](Trainer&) {
    if (rank() == 1) raise(SIGTERM);
  };
  for (const int64_t last : {3, 4, 5, 8}) {
    const TemporaryFolder folder;
    SCOPED_TRACE(last);
    if (last == 3)
      train_saving(folder, 2, last, false, terminate);
    else
      train_saving(folder, 2, last, false, stop);
    EXPECT_EQ(state::bytes_in_file(folder / "latest").substr(0, 17), c10::str("step-00000000000", last));
    expect_same_left(expected, train_saving(folder, 2, 0, last == 5, {}));
  }
}

// Draws its examples from the default generator.
struct Noise : torch::data::Dataset<Noise> {
  torch::data::Example<> get(size_t) override { return {torch::rand({5}), torch::rand({3})}; }
  std::optional<size_t> size() const override { return 8; }
};

Left train_on_noise(const std::string& folder, int64_t steps) {
  return left_of(1, [&] {
    Fit fit({.seed = 3, .epochs = 2, .steps = steps, .save = {.folder = folder}, .resume = folder}, torch::kFloat);
    const auto data = [](int64_t) {
      return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
          Noise().map(torch::data::transforms::Stack<>()), 2);
    };
    fit.run(data, [](SmallModel& net, const torch::data::Example<>& batch) {
      return torch::mse_loss(torch::dropout(net(batch.data), 0.5, net->is_training()), batch.target);
    });
    return Left{{}, whole_values(*fit.model.module())};
  });
}

TEST(Trainer, DataThatDrawsRandomNumbersDrawsTheSameWhereTrainingGoesOn) {
  const TemporaryFolder whole, folder;
  const auto expected = train_on_noise(whole.path(), 7);
  for (const int64_t steps : {3, 4, 5}) train_on_noise(folder.path(), steps);
  expect_same_left(expected, train_on_noise(folder.path(), 7));
}

TEST(Trainer, TestAddsUpOverBatchesAndRanksWithoutGradientsAndPredictKeepsTheOrder) {
  run_thread_ranks(3, [](int r) {
    Trainer trainer;
    auto model = trainer.shard(alike_small_net(torch::kDouble));
    model->train();
    const auto sums = trainer.test(model, batches_of, [](SmallModel& net, const Batch& batch) -> std::vector<Tensor> {
      EXPECT_FALSE(net->is_training());
      EXPECT_FALSE(net(samples(batch, {5})).requires_grad());
      return {torch::tensor(batch.step + 100 * rank()), torch::tensor(1)};
    });
    EXPECT_THAT(sums, ElementsAre(3 * (0 + 1 + 2 + 3 + 4) + 5 * (100 + 200), 15));
    EXPECT_TRUE(model->is_training());
    const std::vector<int> numbers{3, 1, 2};
    const auto predicted = trainer.predict(model, numbers, [r](SmallModel&, int number) { return 10 * r + number; });
    EXPECT_THAT(predicted, ElementsAre(10 * r + 3, 10 * r + 1, 10 * r + 2));
  });
}

// Returns the message of the error on rank 0.
std::string error_of_fit(const auto& data, const auto& loss) {
  std::string message;
  run_thread_ranks(2, [&](int r) {
    const auto error = error_of<UsageError>([&] { Fit().run(data, loss); });
    if (r == 0) message = error;
  });
  return message;
}

TEST(Trainer, WithoutDataOrAScalarLossTheErrorSaysSo) {
  EXPECT_THAT(error_of_fit(std::vector<Batch>(), loss_of_batch),
              HasSubstr("rank 0/2] Trainer::fit: expected data with at least one batch, found none in epoch 0"));
  const auto loss_with = [](auto change) {
    return [change](SmallModel& model, const Batch& batch) { return change(model(samples(batch, {5}))); };
  };
  EXPECT_THAT(error_of_fit(batches_of, loss_with([](const Tensor& y) { return y; })),
              HasSubstr("expected a scalar, found a tensor of sizes [2, 3]"));
  EXPECT_THAT(error_of_fit(batches_of, loss_with([](const Tensor&) { return Tensor(); })),
              HasSubstr("found an undefined tensor"));
  EXPECT_THAT(error_of_fit(batches_of, loss_with([](const Tensor& y) { return y.detach().sum(); })),
              HasSubstr("the loss does not require a gradient"));
}

TEST(Trainer, AnErrorInTheMiddleOfAStepLeavesAModelThatIsReducedAsBefore) {
  run_thread_ranks(2, [](int) {
    Fit fit({.accumulate = 2});
    EXPECT_THROW(fit.run(batches_of, [](SmallModel&, const Batch&) -> Tensor { throw std::runtime_error("no loss"); }),
                 std::runtime_error);
    loss_of_batch(fit.model, batches_of(0)[0]).backward();
    for (const auto& parameter : fit.model->parameters()) EXPECT_TRUE(parameter.grad().defined());
  });
}

TEST(Trainer, OptionsThatCannotBeRightAreErrorsThatNameThem) {
  run_thread_ranks(1, [&](int) {
    for (const auto& [options, says] : std::vector<std::pair<TrainerOptions, const char*>>{
             {{.devices = 4}, "the option devices: expected 1, because 1 rank is running, found 4"},
             {{.epochs = 0}, "the option epochs: expected at least 1, found 0"},
             {{.accumulate = 0}, "the option accumulate"},
             {{.max_grad_norm = -1}, "the option max_grad_norm"},
             {{.mesh_shape = {1, 1, 1}}, "the option mesh_shape"},
             {{.mesh_shape = {1}, .mesh_dim_names = {"rows"}},
              "mesh_dim_names: expected \"data\" and any of \"pipe\", \"sequence\", \"tensor\", found \"rows\""}})
      EXPECT_THAT(error_of<UsageError>([&, o = options] { Trainer trainer(o); }), HasSubstr(says));
    Trainer of_no_options({});
  });
  EXPECT_THROW(Trainer(), UsageError) << "there is no process group";
}

TEST(Trainer, DataThatIsUsedUpBeforeThePlaceOfTheCheckpointIsAnError) {
  const TemporaryFolder folder;
  run_thread_ranks(1, [&](int) {
    const auto train = [&](const std::vector<Batch>& data, int64_t steps) {
      Fit({.steps = steps, .save = {.folder = folder.path()}, .resume = folder.path()}).run(data, loss_of_batch);
    };
    train(batches_of(0), 4);
    EXPECT_THAT(error_of<UsageError>([&] { train({batches_of(0)[0]}, 5); }),
                HasSubstr("4 batches that the loaded training has already processed, found 1"));
  });
}

}  // namespace
}  // namespace fsdp::test
