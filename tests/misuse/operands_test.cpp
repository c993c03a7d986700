// Tests of operands that are used together with rows and have neither the whole parameter's sizes nor those of the
// rows, and of ordinary tensors that are written from rows.

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

struct OneWeight : nn::Module {
  Tensor p;
  explicit OneWeight(int rows) { p = register_parameter("p", torch::full({rows, 4}, 0.5)); }
};

using Acts = std::vector<std::function<void(Tensor&)>>;

// Runs the acts on `world` ranks, some of which may have no rows.
void expect_acts_refused(int world, int rows, const Acts& acts, const std::string& remedy) {
  run_thread_ranks(world, [&](int) {
    OneWeight net(rows);
    fully_shard(static_cast<nn::Module&>(net));
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < acts.size(); ++i) {
      SCOPED_TRACE(c10::str("act ", i, ", ", rows, " rows on ", world, " ranks"));
      expect_error([&] { acts[i](net.p); }, {"@aten::", "parameter 'p'", "expected", "found", remedy});
    }
    EXPECT_TRUE(full_tensor(net.p).eq(0.5).all().item<bool>());
  });
}

TEST(OperandsBesideRows, OfOtherSizesAreRefusedByEveryRank) {
  for (int world : {1, 2, 3})
    for (int rows : {1, 2, 7}) {
      Acts acts;
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{9, 4}, {rows, 3}, {2, rows, 4}, {5}}) {
        acts.push_back([=](Tensor& p) { p.mul_(torch::ones(sizes)); });
        acts.push_back([=](Tensor& p) { p.copy_(torch::ones(sizes)); });
        acts.push_back([=](Tensor& p) { at::_foreach_copy_({p}, {torch::ones(sizes)}); });
        acts.push_back([=](Tensor& p) { p.t().mul_(torch::ones(sizes)); });
      }
      expect_acts_refused(world, rows, acts, "fsdp::full_tensor");
    }

  // If one rank has all rows, the library recognises operands by their sizes.
  expect_acts_refused(
      1, 2, {[](Tensor& p) { p.add_(torch::ones({3, 4})); }},
      "(expected an operand that fits the whole parameter's sizes [2, 4] or this rank's rows 0 to 2 of 2, sizes "
      "[2, 4], found one of sizes [3, 4])");
  expect_acts_refused(
      1, 2, {[](Tensor& p) { p.norm(); }},
      "(expected the whole parameter, as in a forward scope, sizes [2, 4], found this rank's rows 0 to 2 of "
      "2, sizes [2, 4])");
}

// The groups of the twins have different layouts: some ranks have the same rows of both, others do not.
TEST(OperandsBesideRows, OfAParameterWithOtherRowsAreRefusedByEveryRank) {
  struct Wider : nn::Module {
    Tensor first = register_parameter("first", torch::zeros({3, 4}));
    Tensor p = register_parameter("q", torch::zeros({7, 4}));
  };
  run_thread_ranks(3, [&](int) {
    OneWeight model(7);
    Wider average;
    fully_shard(static_cast<nn::Module&>(model));
    fully_shard(static_cast<nn::Module&>(average));
    torch::NoGradGuard no_grad;
    expect_error([&] { average.p.lerp_(model.p, 0.5); },
                 {"parameter 'q'", "found a different sharded tensor of sizes"});
    expect_error([&] { model.p.mul_(average.first); }, {"parameter 'p'"});
  });
}

// If each rank had one row, LibTorch would silently broadcast that row to the whole tensor.
TEST(AnOrdinaryTensorOfWholeSizes, ThatIsWrittenFromRowsIsRefusedAndNamesFullTensor) {
  for (int rows : {2, 7}) {
    const auto whole = torch::zeros({rows, 4});
    expect_acts_refused(2, rows,
                        {[=](Tensor& p) { whole.add_(p); }, [=](Tensor& p) { whole.copy_(p); },
                         [=](Tensor& p) { whole.lerp_(p, 0.5); }, [=](Tensor& p) { at::_foreach_copy_({whole}, {p}); },
                         [=](Tensor& p) { at::_foreach_lerp_({whole}, {p}, 0.5); }},
                        "fsdp::full_tensor(p), on every rank");
    EXPECT_TRUE(whole.eq(0).all().item<bool>());
  }
  run_thread_ranks(2, [](int) {
    OneWeight net(7);
    fully_shard(static_cast<nn::Module&>(net));
    torch::NoGradGuard no_grad;
    auto follower = torch::zeros({7, 4}), rows = torch::zeros_like(net.p);
    follower.add_(full_tensor(net.p));
    EXPECT_TRUE(follower.eq(0.5).all().item<bool>());
    EXPECT_EQ(follower.to(net.p.detach()).size(0), 7) << "takes the type only";
    at::_foreach_lerp_({rows}, {net.p}, 0.5);
    EXPECT_TRUE(fsdp::all({rows == net.p.detach() * 0.5}));
  });
}

TEST(AnOptimizer, ThatWasMadeBeforeShardingWithStateOfWholeSizesIsToldSo) {
  run_thread_ranks(2, [](int) {
    auto linear = linear_alike(4, 6);
    torch::optim::Adagrad adagrad(linear->parameters(), torch::optim::AdagradOptions(0.1));
    auto model = fully_shard(linear);
    model(torch::ones({2, 4})).sum().backward();
    const auto before = full_tensor(linear->weight);
    auto words = refusal("aten::addcmul_", "weight", "(Adagrad)");
    words.insert(words.end(), {"fsdp::fully_shard", "found one of sizes [6, 4]"});
    expect_error([&] { adagrad.step(); }, words);
    EXPECT_TRUE(torch::equal(before, full_tensor(linear->weight)));
    torch::optim::Adagrad after(linear->parameters(), torch::optim::AdagradOptions(0.1));
    after.step();
    EXPECT_FALSE(torch::equal(before, full_tensor(linear->weight)));
  });
}

}  // namespace
}  // namespace fsdp::test
