// Tests of operands that have the whole parameter's sizes, outside a scope. Each rank uses its own rows of them. Ranks
// with all rows, some rows and no rows must behave alike.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

// A net with a matrix of `rows` rows, a vector and a scalar.
struct OperandsNet : nn::Module {
  Tensor p, bias, scale;
  explicit OperandsNet(int rows) {
    p = register_parameter("p", torch::linspace(-1, 1, rows * 4, torch::kDouble).view({rows, 4}));
    bias = register_parameter("bias", torch::linspace(2, 3, rows, torch::kDouble));
    scale = register_parameter("scale", torch::tensor(1.5, torch::kDouble));
  }
};

// With 1 row, all ranks but one have none. With 7 rows on 4 ranks, some ranks have several.
constexpr int kRows[] = {1, 2, 7};

Tensor numbers(at::IntArrayRef sizes) {
  return torch::linspace(0.25, 4, c10::multiply_integers(sizes), torch::kDouble).view(sizes);
}

// Changes a net whose parameters have `rows` rows.
using Update = void (*)(OperandsNet& n, int64_t rows);

void copy_whole_tensors(OperandsNet& n, int64_t rows) {
  n.p.copy_(numbers({rows, 4}));
  n.bias.copy_(numbers({rows}).to(torch::kFloat));
  n.scale.copy_(torch::tensor(2.5, torch::kDouble));
}

void mask_average_and_divide(OperandsNet& n, int64_t rows) {
  const auto whole = numbers({rows, 4});
  n.p.mul_(whole > 1).add_(whole, 0.5).lerp_(whole, 0.25).addcmul_(whole, whole + 1, 0.1).addcdiv_(whole, whole, -1);
  n.p.masked_fill_(whole > 3.5, 7.0).clamp_(-2 * whole, 2 * whole);
  n.p.copy_(torch::where(whole > 2, n.p, whole));
  n.bias.div_(numbers({rows}));
}

void broadcast(OperandsNet& n, int64_t rows) {
  n.p.mul_(numbers({4})).add_(numbers({1, 4})).add_(numbers({1})).mul_(numbers({rows, 1})).add_(numbers({1, 1}));
  n.p.copy_(n.p * numbers({rows, 1}) + numbers({4}));
  n.p.copy_(numbers({4}));
  n.bias.add_(numbers({1}));
}

void write_through_views_of_all_rows(OperandsNet& n, int64_t rows) {
  n.p.view(-1).copy_(numbers({rows * 4}));
  n.p.t().add_(numbers({4, rows}));
  n.p.select(1, 1).mul_(numbers({rows}));
  n.p.slice(1, 2, 4).sub_(numbers({rows, 2}));
  n.p.index_put_({torch::indexing::Slice(), -1}, torch::tensor(2.0, torch::kDouble));
  n.p.index_put_({torch::indexing::Slice(), 0}, 3.0);
  n.p.data().add_(numbers({rows, 4}));
}

void update_lists(OperandsNet& n, int64_t rows) {
  const std::vector<Tensor> mine{n.p, n.bias}, whole{numbers({rows, 4}), numbers({rows})};
  at::_foreach_copy_(mine, whole);
  at::_foreach_mul_(mine, whole);
  at::_foreach_lerp_(mine, {whole[0] + 1, whole[1]}, 0.25);
  at::_foreach_addcdiv_(mine, whole, {whole[0] + 2, whole[1]}, 0.5);
  at::_foreach_add_(mine, mine, 1.0);
}

void take_operands_of_the_rows_sizes(OperandsNet& n, int64_t) {
  const auto before = n.p.detach().clone();
  auto average = torch::zeros_like(n.p);
  average.mul_(0.9).add_(n.p, 0.1).addcmul_(n.p, n.p);
  n.p.add_(average).sub_(before).add_(n.p.detach());
}

TEST(ZooOperands, OfWholeSizesAndOfTheRowsGiveWhatTheyGiveOrdinaryTensors) {
  constexpr Update kUpdates[] = {copy_whole_tensors, mask_average_and_divide,
                                 broadcast,          write_through_views_of_all_rows,
                                 update_lists,       take_operands_of_the_rows_sizes};
  for (int world : worlds_up_to(4))
    for (int rows : {1, 2, 7})  // with 1 row, all ranks but one have none
      run_thread_ranks(world, [&](int) {
        for (size_t i = 0; i < std::size(kUpdates); ++i) {
          SCOPED_TRACE(c10::str("update ", i, " of ", rows, " rows on ", world, " ranks"));
          OperandsNet whole(rows), net(rows);
          fully_shard(static_cast<nn::Module&>(net));
          torch::NoGradGuard no_grad;
          kUpdates[i](whole, rows);
          kUpdates[i](net, rows);
          EXPECT_TRUE(torch::equal(full_tensor(net.p), whole.p));
          EXPECT_TRUE(torch::equal(full_tensor(net.bias), whole.bias));
          EXPECT_TRUE(torch::equal(full_tensor(net.scale), whole.scale));
        }
      });
}

TEST(ZooOperands, AnAverageThatIsShardedAlikeIsUpdatedFromRows) {
  run_thread_ranks(3, [&](int) {
    OperandsNet model(7), average(7);
    fully_shard(static_cast<nn::Module&>(model));
    fully_shard(static_cast<nn::Module&>(average));
    torch::NoGradGuard no_grad;
    model.p.add_(1.0);
    average.p.lerp_(model.p, 0.5);
    EXPECT_TRUE(torch::equal(full_tensor(average.p), full_tensor(model.p) - 0.5));
  });
}

}  // namespace
}  // namespace fsdp::test
