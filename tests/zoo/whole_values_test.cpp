// Tests of code outside a scope that reads, clips or writes whole values.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

void expect_same_values(Run<ScaledNet> run) { expect_same_sharded<ScaledNet>(std::move(run), shard_first_then_root); }

// Compares with torch's function on the unsharded model, for limits above and below the norm.
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
    std::optional<SummonFullParams> whole;
    if (role.is_sharded()) whole.emplace(group_of(net));
    for (const auto& parameter : net.parameters()) values.push_back(parameter.detach().clone());
    torch::NoGradGuard no_grad;
    values.push_back(net.in->weight.norm() + net.out->weight.matmul(net.in->weight).sum());
    return values;
  });
}

// The writes must also last if groups keep whole copies. Forward sees the written values.
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

// Applies weight decay by hand to this rank's rows. Outside LocalRows the same code is refused.
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

// placement_of must return the process groups of the mesh or of the options themselves, not copies.
using Groups = std::vector<std::shared_ptr<ProcessGroup>>;

TEST(PlacementOf, AParameterIsTheAxesThatItsRowsLieOn) {
  run_thread_ranks(4, [](int rank) {
    const auto all = default_process_group();
    const auto mesh = init_device_mesh({2, 2}, {"replicate", "shard"});
    auto [meshed, net] = build_alike([] { return std::pair(nn::Linear(4, 6), std::make_shared<ScaledNet>()); });
    const auto model = fully_shard(meshed, {.mesh = mesh});
    fully_shard(static_cast<nn::Module&>(*net->in));
    fully_shard(static_cast<nn::Module&>(*net->out), {.strategy = Strategy::kReplicate});
    const auto expect = [](const Tensor& parameter, const Groups::value_type& ranks, const Groups::value_type& shard,
                           const Groups& replicate) {
      const auto found = placement_of(parameter);
      EXPECT_EQ(found.ranks, ranks);
      EXPECT_EQ(found.shard, shard);
      EXPECT_EQ(found.replicate, replicate);
    };
    expect(meshed->weight, mesh.laid_out(), mesh.process_group("shard"), {mesh.process_group("replicate")});
    expect(net->in->weight, all, all, {});
    expect(net->scale, nullptr, nullptr, {});
    const auto replicated = placement_of(net->out->weight);
    expect(net->out->weight, all, replicated.shard, {all});
    EXPECT_EQ(replicated.shard->global_ranks(), std::vector{rank});
    const ForwardScope scope(model);
    expect(meshed->weight, mesh.laid_out(), mesh.process_group("shard"), {mesh.process_group("replicate")});
  });
}

}  // namespace
}  // namespace fsdp::test
