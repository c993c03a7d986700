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
  expect_same_values([=](ScaledNet& net, const Role& role) {
    Values values;
    for (double norm_type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()})
      for (double max_norm : {0.01, 100.0}) {
        net.zero_grad();
        learn(net, role);
        double norm = role.is_sharded() ? clip_grad_norm_(group_of(net), max_norm, norm_type)
                                        : nn::utils::clip_grad_norm_(net.parameters(), max_norm, norm_type);
        values.push_back(torch::tensor(norm, torch::kDouble));
        append(values, gradients_of(net, role));
      }
    return values;
  });
}

TEST(ZooWholeValues, SummonedParametersAreWholeAndEqualTheUnshardedOnes) {
  expect_same_values([=](ScaledNet& net, const Role& role) {
    Values values;
    for (const bool offload : {false, true}) {
      std::optional<SummonFullParams> whole;
      if (role.is_sharded()) whole.emplace(group_of(net), SummonOptions{.offload_to_cpu = offload});
      for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
      torch::NoGradGuard no_grad;
      values.push_back(net.in->weight.norm() + net.out->weight.matmul(net.in->weight).sum());
    }
    return values;
  });
}

// Also where whole copies would be kept. Forward sees what was written.
TEST(ZooWholeValues, WritesToSummonedParametersLastOnlyWithWriteBack) {
  expect_same_values([=](ScaledNet& net, const Role& role) {
    const auto write = [&] {
      torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) parameter.mul_(1.5).add_(0.5);
      net.in->weight[1].fill_(3.0);
    };
    Values values;
    for (bool keeps_copies : {false, true})
      for (bool write_back : {false, true}) {
        if (role.is_sharded()) {
          group_of(net).set_reshard_after_backward(!keeps_copies);
          auto whole = summon_full_params(group_of(net));
          write();
          if (write_back) whole.write_back();
        } else if (write_back) {
          write();
        }
        append(values, descend(net.parameters(), [&](int) { return learn(net, role); }, /*steps=*/1));
        values.push_back(role.gradient(net.in->weight));
      }
    return values;
  });
}

TEST(ZooWholeValues, SummoningForEvaluationBetweenStepsLeavesTrainingAlone) {
  expect_same_values([](ScaledNet& net, const Role& role) {
    return descend(net.parameters(), [&](int step) {
      if (role.is_sharded()) {
        auto whole = summon_full_params(group_of(net));
        torch::NoGradGuard no_grad;
        net.forward(samples(role.batch(step), {4}));
      }
      return learn(net, role, step);
    });
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
    role.whole(net, [&] { values.push_back(whole_of(net.in->weight, role)); });
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
