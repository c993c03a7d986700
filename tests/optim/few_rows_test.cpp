// Tests of parameters with few rows, whose rows are shorter than those of dim 0: computations on rows between steps
// must equal those on whole tensors.

#include <fsdp/fsdp.h>

#include <sstream>

#include "misuse/net.h"
#include "support/few_rows_net.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

// Makes a net of two or more param groups on each rank, and calls `act` with it and its gradients.
void on_few_rows(int world, const FullyShardOptions& options,
                 const std::function<void(FewRowsNetImpl& net, const Group& group)>& act) {
  const auto training = few_rows_training(options);
  run_with_models(world, [&] { return build_model(training); }, [&](FewRowsNetImpl& net, int rank) {
    SCOPED_TRACE(c10::str(options.strategy, ", world ", world));
    const auto group = training.shard(net);
    in_scope(group, [&] { return few_rows_loss(net, {1, rank * 2, 2}); }).backward();
    act(net, group);
  });
}

TEST(FewRows, TrainAsUnsharded) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate}) {
    auto training = few_rows_training({.strategy = strategy});
    training.max_norm = 0.01;
    training.optimizer = [](auto parameters) {
      return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
    };
    for (const int world : worlds_up_to(3)) expect_training_equals_unsharded(training, world);
  }
}

TEST(FewRows, HaveTheSumsAndNormsOfWholeTensors) {
  for (const int world : {2, 3})
    on_few_rows(world, {}, [](FewRowsNetImpl& net, const Group& group) {
      const torch::NoGradGuard no_grad;
      double squares = 0;
      for (const auto& p : net.parameters()) {
        const auto whole = full_tensor(p), gradient = full_grad(p);
        squares += gradient.square().sum().item<double>();
        const auto near = [&](const Tensor& expected, const Tensor& found) {
          EXPECT_LT(relative_difference(expected, found), 1e-12) << expected.sizes() << " and " << found.sizes();
        };
        near(whole.norm(), torch::tensor(fsdp::norm({p}), torch::kDouble));
        near(whole.abs().max(), torch::tensor(fsdp::norm({p}, INFINITY), torch::kDouble));
        near(gradient.abs().sum(), torch::tensor(fsdp::sum({p.grad().abs()}), torch::kDouble));
        near((whole * gradient).norm(), torch::tensor(fsdp::norms({p, p * p.grad()})[1], torch::kDouble));
        for (const bool keepdim : {false, true}) {
          near(whole.square().sum(), fsdp::sum(p * p, {}, false));
          for (int64_t dim = 0; dim < whole.dim(); ++dim) {
            near(whole.square().sum(dim, keepdim), fsdp::sum(p * p, {dim}, keepdim));
            near(gradient.sum(dim, keepdim), fsdp::sum(p.grad(), {dim - whole.dim()}, keepdim));
          }
          if (whole.dim() == 3) near(whole.square().sum({0, 2}, keepdim), fsdp::sum(p * p, {0, 2}, keepdim));
        }
      }
      EXPECT_NEAR(get_total_norm(group), std::sqrt(squares), 1e-12 * std::sqrt(squares));
    });
}

TEST(FewRows, MeetOperandsOfWholeSizesAndThoseThatAreBroadcastToThem) {
  for (const int world : {1, 2, 3})
    on_few_rows(world, {}, [](FewRowsNetImpl& net, const Group&) {
      const torch::NoGradGuard no_grad;
      const auto expect_fits = [](const Tensor& p, const std::vector<std::vector<int64_t>>& operands) {
        const auto whole = full_tensor(p);
        for (const auto& sizes : operands) {
          const auto operand = samples({2, 0, 1}, sizes, torch::kDouble).squeeze(0);
          EXPECT_TRUE(torch::equal(full_tensor(p * operand), whole * operand)) << sizes;
          EXPECT_TRUE(torch::equal(full_tensor(torch::where(operand > 0, p, 0.25)),
                                   torch::where(operand > 0, whole, 0.25)))
              << sizes;
          auto written = p.detach().clone();
          written.addcmul_(p.detach(), operand);
          EXPECT_TRUE(torch::equal(full_tensor(written), whole.addcmul(whole, operand))) << sizes;
        }
      };
      expect_fits(net.experts->value,
                  {{5, 36, 460}, {5, 1, 1}, {5, 36, 1}, {36, 460}, {36, 1},
                   {1, 36, 1}, {5, 1, 460}, {460}, {1, 1, 1}, {1}});
      expect_fits(net.position->value, {{1, 30, 600}, {30, 600}, {30, 1}, {1, 1, 600}, {1, 1, 1}});
      expect_fits(net.head->weight, {{1, 18'000}, {18'000}, {1, 1}, {1}});
      expect_fits(net.first->weight, {{460, 5}, {460, 1}, {5}});
      for (const std::vector<int64_t>& sizes :
           {std::vector<int64_t>{5, 36, 461}, {4, 1, 1}, {2, 5, 36, 460}, {180, 460}, {37, 1}})
        expect_error([&] { net.experts->value.detach().mul_(torch::ones(sizes, torch::kDouble)); },
                     {"@aten::mul_", "parameter 'experts.value'", "the whole parameter's sizes [5, 36, 460]"});
    });
}

// Both parameters have equally many rows of equally many elements, and every rank has the same rows of both.
struct TwinsImpl : torch::nn::Module {
  Tensor stacked, flat;
  explicit TwinsImpl(const std::vector<int64_t>& sizes) {
    stacked = register_parameter("stacked", torch::ones(sizes));
  }
};

TEST(FewRows, AreNotTakenForTheRowsOfAParameterOfOtherSizes) {
  run_thread_ranks(2, [](int) {
    TwinsImpl stacked({5, 36, 460}), flat({180, 460}), alike({5, 36, 460});
    for (auto* net : {&stacked, &flat, &alike}) fully_shard(static_cast<torch::nn::Module&>(*net));
    EXPECT_EQ(stacked.stacked.sizes(), flat.stacked.sizes());
    const torch::NoGradGuard no_grad;
    EXPECT_NO_THROW(stacked.stacked.detach().lerp_(alike.stacked, 0.5));
    const std::vector<std::string> says{"parameter 'stacked'", "a different sharded tensor"};
    expect_error([&] { stacked.stacked.detach().lerp_(flat.stacked, 0.5); }, says);
    expect_error([&] { flat.stacked.detach().lerp_(stacked.stacked, 0.5); }, says);
  });
}

// On a rank that has 8 rows, an operand of sizes [8, 4600] may belong to these rows, or to each matrix.
TEST(FewRows, MeetNoOperandThatMayBeOfTheRowsAndOfTheWholeParameter) {
  run_thread_ranks(5, [](int) {
    torch::nn::Module net;
    net.register_parameter("before", torch::ones({6, 4600}));
    const auto p = net.register_parameter("stacked", torch::ones({4, 8, 4600}));
    fully_shard(net);
    const torch::NoGradGuard no_grad;
    const auto multiply = [&] { p.detach().mul_(torch::ones({8, 4600})); };
    if (p.size(0) == 8)
      expect_error(multiply, {"@aten::mul_", "parameter 'stacked'", "the whole parameter's sizes [4, 8, 4600]"});
    else
      EXPECT_NO_THROW(multiply());
    EXPECT_NO_THROW(p.detach().mul_(torch::ones_like(p))) << "made of the rows";
    barrier();
  });
}

// All rows of the second parameter are on the last rank. Even there they have fewer dims than the parameter.
TEST(FewRows, MeetOperandsWhereOneRankHasAllOfThem) {
  run_thread_ranks(2, [](int r) {
    torch::nn::Module net;
    net.register_parameter("long", torch::ones({100, 512}));
    const auto p = net.register_parameter("position", torch::ones({1, 40, 512}));
    fully_shard(net);
    EXPECT_EQ(local_rows(p), (LocalRowRange{0, r * 40}));
    const torch::NoGradGuard no_grad;
    const auto factors = torch::arange(40.0).view({1, 40, 1});
    EXPECT_TRUE(torch::equal(full_tensor(p * factors), torch::ones({1, 40, 512}) * factors));
  });
}

TEST(FewRows, MoveToOtherStrategiesAndDtypesWithTheirState) {
  for (const int world : {2, 3})
    on_few_rows(world, {}, [&](FewRowsNetImpl& net, const Group& group) {
      optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
      optimizer.step();
      const auto& p = net.experts->value;
      const auto whole = full_tensor(p), gradient = full_grad(p);
      const auto moment = [&] {
        const torch::NoGradGuard no_grad;
        const auto& state = *optimizer.state().at(p.unsafeGetTensorImpl());
        const auto& rows = static_cast<const torch::optim::AdamWParamState&>(state).exp_avg();
        return full_tensor(torch::zeros_like(p).add_(rows));
      };
      const auto of_whole = moment();
      for (const auto strategy : {Strategy::kReplicate, Strategy::kShardOptimizer, Strategy::kFullShard}) {
        SCOPED_TRACE(strategy);
        set_strategy(group, optimizer, strategy);
        EXPECT_TRUE(torch::equal(full_tensor(p), whole));
        EXPECT_TRUE(torch::equal(full_grad(p), gradient));
        EXPECT_TRUE(torch::equal(moment(), of_whole));
      }
      optimizer.zero_grad();
      for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
        fsdp::to(group, dtype);
        EXPECT_TRUE(torch::equal(full_tensor(p), whole.to(torch::kFloat).to(dtype)));
      }
    });
}

TEST(FewRows, AreWrittenWholeShownAndComputedAnew) {
  for (const int world : {2, 3})
    on_few_rows(world, {}, [&](FewRowsNetImpl& net, const Group& group) {
      const auto& p = net.experts->value;
      const auto whole = full_tensor(p);
      const torch::NoGradGuard no_grad;
      {
        auto all = summon_full_params(group);
        EXPECT_TRUE(torch::equal(p, whole));
        p.mul_(2);
        all.write_back();
      }
      EXPECT_TRUE(torch::equal(full_tensor(p), whole * 2));
      std::ostringstream text;
      text << group;
      const auto rows = local_rows(p);
      EXPECT_NE(text.str().find(c10::str("value [5, 36, 460] rows ", rows.first, "..", rows.first + rows.count,
                                         " of [180, 460]\n")),
                std::string::npos)
          << text.str();
      initialize(group, [&] {
        EXPECT_EQ(p.sizes(), whole.sizes());
        p.copy_(torch::arange(5).view({5, 1, 1}).expand_as(p));
      });
      EXPECT_TRUE(torch::equal(full_tensor(p), torch::arange(5.0, torch::kDouble).view({5, 1, 1}).expand_as(whole)));
    });
}

TEST(FewRows, HaveTheValuesOfOrdinaryConstructionAfterDeferredInitAndRank0sBySyncing) {
  const auto ordinary = build_alike([] { return FewRowsNet(); });
  for (const bool syncs : {false, true})
    for (const int world : {2, 3})
      run_with_models(
          world,
          [] { return build_alike([] { return deferred_init([] { return std::make_shared<FewRowsNetImpl>(); }); }); },
          [&](FewRowsNetImpl& net, int) {
            shard_children_then_root(net, {.sync_module_states = syncs});
            for (const auto& item : net.named_parameters())
              EXPECT_TRUE(torch::equal(full_tensor(item.value()), ordinary->named_parameters()[item.key()]))
                  << item.key();
          });
}

}  // namespace
}  // namespace fsdp::test
