// Tests of what a GradScaler communicates, of its passes over memory, of errors for its misuse, and of its state in
// checkpoints.

#include <ATen/record_function.h>
#include <fsdp/checkpoint.h>
#include <gmock/gmock.h>

#include "amp/scaled_net.h"
#include "runtime/cost_net.h"
#include "state/files.h"
#include "support/disk_folder.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using torch::Tensor;

TEST(GradScaler, TellsTheOtherRanksOneNumberForEachOptimizer) {
  for (const bool has_replicas : {false, true}) {
    Recorded recorded(4);
    run_thread_ranks(
        4,
        [&](int r) {
          FullyShardOptions options;
          if (has_replicas) options.mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
          Scaled model(options);
          GradScaler scaler;
          for (int step = 0; step < 2; ++step) {
            model.backward(scaler, step);
            if (step == 1) model.plant(kInf, 2);
            recorded.clear(r);
            if (step == 1) scaler.unscale_(*model.optimizer);
            model.step(scaler);
            if (has_replicas) continue;
            const auto entries = recorded.log(r).entries();
            ASSERT_THAT(entries, testing::SizeIs(1)) << "rank " << r;
            EXPECT_EQ(entries[0].operation, "all_reduce(max)");
            EXPECT_EQ(entries[0].bytes, 3 * sizeof(float)) << "an inf, and whether some rank scaled and has gradients";
          }
          EXPECT_EQ(scaler.get_scale(), 32768) << "rank " << r << ": a replica has no inf of its own";
        },
        // A mesh needs to split the process group, and a recording communicator cannot be split.
        has_replicas ? ThreadRanksOptions{} : recorded.options);
  }
}

int64_t checks_during(const std::function<void()>& act) {
  static thread_local int64_t checks;
  checks = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        checks += std::string_view(function.name()) == "aten::_amp_foreach_non_finite_check_and_unscale_";
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  act();
  at::removeCallback(handle);
  return checks;
}

TEST(GradScaler, GoesOverAGroupsGradientsInOnePass) {
  for (const int world : worlds_up_to(4))
    run_thread_ranks(world, [&](int) {
      Scaled model;
      GradScaler scaler;
      model.backward(scaler, 0);
      EXPECT_THAT(checks_during([&] { scaler.unscale_(*model.optimizer); }), testing::AllOf(Ge(1), Le(12)))
          << "three planes of three blocks and the root";
    });
}

TEST(GradScaler, MistakesAreThoseOfTorchAmp) {
  run_thread_ranks(2, [](int) {
    Scaled model;
    GradScaler scaler;
    auto& optimizer = *model.optimizer;
    const auto refused = [](const auto& act, const std::string& words) { expect_error(act, {words}); };
    model.forward(0).backward();
    const auto before = full_grad(model.net->first->weight);
    refused([&] { scaler.step(optimizer); }, "GradScaler::step: no loss has been scaled yet");
    refused([&] { scaler.unscale_(optimizer); }, "GradScaler::unscale_: no loss has been scaled yet");
    refused([&] { scaler.update(); }, "no loss has been scaled yet");
    EXPECT_TRUE(torch::equal(before, full_grad(model.net->first->weight))) << "nothing was divided";
    const auto loss = scaler.scale(model.forward(0));
    refused([&] { scaler.update(); }, "no gradients have been checked");
    refused([&] { scaler.step(optimizer); }, "none of the optimizer's parameters has a gradient");
    scaler.update(2.0);
    EXPECT_EQ(scaler.get_scale(), 2);
    loss.backward();
    scaler.unscale_(optimizer);
    refused([&] { scaler.unscale_(optimizer); },
            "unscale_ was already called for this optimizer since the last update()");
    scaler.step(optimizer);
    refused([&] { scaler.unscale_(optimizer); }, "unscale_ was called after step()");
    refused([&] { scaler.step(optimizer); }, "step was already called for this optimizer since the last update()");
    scaler.update();
    refused([&] { scaler.step(optimizer, [] { return Tensor(); }); }, "closures are not supported");
    refused([&] { scaler.update(0.0); }, "expected a scale above 0");
    {
      ForwardScope scope(model.group);
      refused([&] { scaler.unscale_(optimizer); }, "a forward scope or a backward is open");
    }
    scaler.unscale_(optimizer);  // the refused calls changed nothing
    scaler.update();
    {
      const auto no_sync = model.group.no_sync();
      model.backward(scaler, 1);
    }
    refused([&] { scaler.step(optimizer); }, "wait for their reduction");
    model.group.reset_iter_state();
  });
  expect_error([] { GradScaler({.growth_factor = 1.0}); }, {"growth_factor > 1, found 1"});
  expect_error([] { GradScaler({.backoff_factor = 1.0}); }, {"backoff_factor < 1, found 1"});
  expect_error([] { GradScaler({.init_scale = 1e300}); }, {"found 1e+300"});
}

TEST(GradScaler, WithoutEnabledOptimizersStepAsEver) {
  run_thread_ranks(2, [](int) {
    Scaled model;
    GradScaler scaler({.growth_factor = 0.5, .enabled = false});
    const auto loss = model.forward(0);
    EXPECT_TRUE(scaler.scale(loss).is_same(loss));
    loss.backward();
    const auto before = model.values();
    scaler.unscale_(*model.optimizer);
    EXPECT_EQ(scaler.step(*model.optimizer, [] { return torch::ones({1}); }).item<float>(), 1);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 1);
    EXPECT_FALSE(are_equal(before, model.values()));
  });
}

TEST(GradScaler, GoesOnFromACheckpoint) {
  const state::TemporaryFolder folder;
  GradScalerState saved;
  run_thread_ranks(3, [&](int r) {
    Scaled model;
    GradScaler scaler({.init_scale = 48, .growth_factor = 1.5, .backoff_factor = 0.25, .growth_interval = 5});
    for (int step = 0; step < 7; ++step) model.iterate(scaler, step);
    save_checkpoint(folder.path(), model.group, model.optimizer.get(), {.step = 7, .scaler = &scaler});
    if (r == 0) saved = scaler.state();
  });
  EXPECT_EQ(saved, (GradScalerState{72, 1.5, 0.25, 5, 2}));
  run_thread_ranks(2, [&](int) {
    Scaled model;
    GradScaler scaler;
    load_checkpoint(folder.path(), model.group, model.optimizer.get(), {.scaler = &scaler});
    EXPECT_EQ(scaler.state(), saved);
    EXPECT_EQ(load_checkpoint(folder.path(), model.group, model.optimizer.get()).step, 7) << "also without one";
    save_checkpoint(folder.path(), model.group, nullptr, {.step = 8});
    EXPECT_THAT([&] { load_checkpoint(folder.path(), model.group, nullptr, {.scaler = &scaler}); },
                testing::ThrowsMessage<Error>(HasSubstr("scaler: the checkpoint has no GradScaler")));
    const auto loaded = load_checkpoint(folder.path(), model.group, nullptr,
                                        {.strict = false, .may_differ = {"scaler"}, .scaler = &scaler});
    EXPECT_THAT(loaded.differing, ElementsAre("scaler: the checkpoint has no GradScaler"));
    EXPECT_EQ(scaler.state(), saved);
  });
}

TEST(GradScaler, GradientsInFilesAreUnscaledThere) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    Scaled plain, on_disk({.disk_policy = DiskOffloadPolicy{.folder = folder.path()}});
    GradScaler scaler;
    for (int step = 0; step < 2; ++step) plain.iterate(step), on_disk.iterate(scaler, step);
    EXPECT_TRUE(are_equal(plain.values(), on_disk.values()));
  });
}

}  // namespace
}  // namespace fsdp::test
