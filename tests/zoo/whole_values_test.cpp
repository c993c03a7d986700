// What looks at, clips or writes values from outside a scope.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

void expect_same_values(Run<ScaledNet> run) { expect_same_sharded<ScaledNet>(std::move(run), shard_first_then_root); }

Tensor whole_of(const Tensor& parameter, const Role& role) {
  return role.is_sharded() ? full_tensor(parameter) : parameter.detach().clone();
}

// Above and below the norm, against torch's function on the unsharded model.
TEST(ZooClipping, NormAndClippedGradientsEqualTorchsOnTheUnshardedModel) {
  for (double norm_type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(norm_type);
    expect_same_values([=](ScaledNet& net, const Role& role) {
      Values values;
      for (double max_norm : {0.01, 100.0}) {
        net.zero_grad();
        learn(net, role);
        double norm = role.is_sharded() ? clip_grad_norm_(group_of(net), max_norm, norm_type)
                                        : nn::utils::clip_grad_norm_(net.parameters(), max_norm, norm_type);
        values.push_back(torch::tensor(norm, torch::kDouble));
        for (const auto& gradient : gradients_of(net, role)) values.push_back(gradient);
      }
      return values;
    });
  }
}

TEST(ZooWholeValues, SummonedParametersAreWholeAndEqualTheUnshardedOnes) {
  for (const bool offload : {false, true})
    expect_same_values([=](ScaledNet& net, const Role& role) {
      std::optional<SummonFullParams> whole;
      if (role.is_sharded()) whole.emplace(group_of(net), SummonOptions{.offload_to_cpu = offload});
      Values values;
      for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
      torch::NoGradGuard no_grad;
      values.push_back(net.in->weight.norm() + net.out->weight.matmul(net.in->weight).sum());
      return values;
    });
}

void expect_writes_last_only_with_write_back(bool keeps_copies) {
  for (bool write_back : {false, true})
    expect_same_values([=](ScaledNet& net, const Role& role) {
      const auto write = [&] {
        torch::NoGradGuard no_grad;
        for (auto& parameter : net.parameters()) parameter.mul_(2.0).add_(1.0);
        net.in->weight[1].fill_(3.0);
      };
      if (role.is_sharded()) {
        group_of(net).set_reshard_after_backward(!keeps_copies);
        auto whole = summon_full_params(group_of(net));
        write();
        if (write_back) whole.write_back();
      } else if (write_back) {
        write();
      }
      // Forward sees what was written.
      descend(net.parameters(), [&](int) { return learn(net, role); }, /*steps=*/1);
      return Values{role.gradient(net.in->weight)};
    });
}

TEST(ZooWholeValues, WritesToSummonedParametersLastOnlyWithWriteBack) {
  expect_writes_last_only_with_write_back(/*keeps_copies=*/false);
}

TEST(ZooWholeValues, WritesToSummonedParametersThatWouldBeKeptLastOnlyWithWriteBack) {
  expect_writes_last_only_with_write_back(/*keeps_copies=*/true);
}

TEST(ZooWholeValues, SummoningForEvaluationBetweenStepsLeavesTrainingAlone) {
  expect_same_values([](ScaledNet& net, const Role& role) {
    auto optimizer = sgd(net.parameters());
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      learn(net, role, step);
      optimizer.step();
      if (!role.is_sharded()) continue;
      auto whole = summon_full_params(group_of(net));
      torch::NoGradGuard no_grad;
      net.forward(samples(role.batch(step), {4}));
    }
    return Values{};
  });
}

// Weight decay by hand on this rank's rows; outside the guard the same code is refused.
TEST(ZooWholeValues, LocalRowsComputesOnTheRowsOfTheRank) {
  expect_same_values([](ScaledNet& net, const Role& role) {
    torch::NoGradGuard no_grad;
    std::optional<LocalRows> rows;
    if (role.is_sharded()) {
      EXPECT_THROW(net.in->weight.norm(), UsageError);
      rows.emplace(group_of(net));
    }
    auto squares = torch::zeros({}, torch::kDouble);
    for (auto& parameter : net.parameters()) {
      squares += parameter.norm().pow(2);
      parameter.mul_(0.5);
      if (parameter.numel() > 0) parameter.data_ptr<double>()[0] += 0.0;
    }
    return Values{role.is_sharded() ? squares * role.world : squares};
  });
}

TEST(ZooWholeValues, WholeTensorsGradientsAndSizesAreThoseOfTheUnshardedModel) {
  expect_same_values([](ScaledNet& net, const Role& role) {
    learn(net, role);
    Values values = gradients_of(net, role);
    for (const auto& parameter : net.parameters()) {
      values.push_back(whole_of(parameter, role));
      EXPECT_FALSE(values.back().requires_grad());
      auto sizes = global_sizes(parameter);
      values.push_back(torch::tensor(sizes.empty() ? std::vector<int64_t>{1} : sizes).to(torch::kDouble));
      auto rows = local_rows(parameter);
      int64_t whole_rows = sizes.empty() ? 1 : sizes[0];
      EXPECT_LE(rows.first + rows.count, whole_rows);
      auto held = torch::zeros({whole_rows}, torch::kDouble);
      held.slice(0, rows.first, rows.first + rows.count).fill_(role.is_sharded() ? role.world : 1.0);
      values.push_back(held);  // every row is held once
    }
    EXPECT_FALSE(role.gradient(net.unused->weight).defined());
    return values;
  });
}

// Whole tensors may also be asked for inside a scope.
TEST(ZooWholeValues, FullTensorInsideAScopeIsTheWholeParameter) {
  expect_same_values([](ScaledNet& net, const Role& role) {
    return role.whole(net, [&] {
      auto before = whole_of(net.in->weight, role);
      net.forward(samples(role.batch(0), {4}));
      return Values{before, whole_of(net.out->weight, role)};
    });
  });
}

// The groups of ranks are those of the mesh, or of the options, themselves.
using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

TEST(PlacementOf, AParameterIsTheAxesOfTheMeshThatItsRowsLieOn) {
  run_thread_ranks(4, [](int) {
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    auto net = build_alike([] { return std::make_shared<ScaledNet>(); });
    const auto model = fully_shard(net, {.mesh = mesh});
    const auto placement = placement_of(net->in->weight);
    EXPECT_EQ(placement.ranks, mesh.laid_out());
    EXPECT_EQ(placement.shard, mesh.process_group("shard"));
    EXPECT_EQ(placement.replicate, Groups{mesh.process_group("replicate")});
    const ForwardScope scope(model);
    EXPECT_EQ(placement_of(net->in->weight).shard, placement.shard);
  });
}

TEST(PlacementOf, AParameterWithoutAMeshIsOneAxis) {
  run_thread_ranks(3, [](int rank) {
    const auto all = default_process_group();
    auto net = build_alike([] { return std::make_shared<ScaledNet>(); });
    fully_shard(static_cast<nn::Module&>(*net->in));
    fully_shard(static_cast<nn::Module&>(*net->out), {.strategy = Strategy::kReplicate});
    const auto sharded = placement_of(net->in->weight), replicated = placement_of(net->out->weight);
    EXPECT_EQ(sharded.ranks, all);
    EXPECT_EQ(sharded.shard, all);
    EXPECT_EQ(sharded.replicate, Groups{});
    EXPECT_EQ(replicated.ranks, all);
    EXPECT_EQ(replicated.shard->global_ranks(), std::vector{rank});
    EXPECT_EQ(replicated.replicate, Groups{all});
    const auto ordinary = placement_of(net->scale);
    EXPECT_EQ(ordinary.ranks, nullptr);
    EXPECT_EQ(ordinary.shard, nullptr);
    EXPECT_EQ(ordinary.replicate, Groups{});
  });
}

}  // namespace
}  // namespace fsdp::test
