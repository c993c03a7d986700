// Compares collectives that autograd records with the same maps of all ranks' tensors in one graph.

#include <ATen/CPUGeneratorImpl.h>
#include <fsdp/fsdp.h>
#include <fsdp/functional.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

namespace functional = fsdp::functional;
using Tensors = std::vector<at::Tensor>;

struct Case {
  std::string name;
  // A rank's call, and a function from the inputs of all ranks to the results of all ranks.
  std::function<at::Tensor(const at::Tensor&)> call;
  std::function<Tensors(const Tensors&)> joined;
};

Tensors same(const at::Tensor& result, size_t ranks) { return Tensors(ranks, result); }

at::Tensor sum_of(const Tensors& tensors) { return at::stack(tensors).sum(0); }

// Returns, for each rank, that rank's part of every tensor, joined.
Tensors exchanged(const Tensors& inputs, int64_t split, int64_t concat) {
  Tensors results;
  const auto ranks = static_cast<int64_t>(inputs.size());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Tensors parts;
    for (const auto& input : inputs) parts.push_back(input.chunk(ranks, split)[static_cast<size_t>(rank)]);
    results.push_back(at::cat(parts, concat));
  }
  return results;
}

Tensors moved_round(const Tensors& inputs, int64_t by) {
  Tensors results;
  const auto ranks = static_cast<int64_t>(inputs.size());
  for (int64_t rank = 0; rank < ranks; ++rank)
    results.push_back(inputs[static_cast<size_t>(((rank - by) % ranks + ranks) % ranks)] * 1);
  return results;
}

// Returns cases for tensors of sizes [12, 2, 24], which 1 to 4 ranks divide along dims 0 and 2.
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"all_reduce", [](const auto& x) { return functional::all_reduce(x); },
       [](const Tensors& x) { return same(sum_of(x), x.size()); }},
      {"all_gather along dim 1", [](const auto& x) { return functional::all_gather(x, 1); },
       [](const Tensors& x) { return same(at::cat(x, 1), x.size()); }},
      {"all_gather along the last dim", [](const auto& x) { return functional::all_gather(x, -1); },
       [](const Tensors& x) { return same(at::cat(x, 2), x.size()); }},
      {"reduce_scatter along dim 0", [](const auto& x) { return functional::reduce_scatter(x, 0); },
       [](const Tensors& x) { return sum_of(x).chunk(static_cast<int64_t>(x.size()), 0); }},
      {"reduce_scatter along dim 2", [](const auto& x) { return functional::reduce_scatter(x, 2); },
       [](const Tensors& x) { return sum_of(x).chunk(static_cast<int64_t>(x.size()), 2); }},
      {"all_to_all from dim 0 to 1", [](const auto& x) { return functional::all_to_all(x, 0, 1); },
       [](const Tensors& x) { return exchanged(x, 0, 1); }},
      {"all_to_all from dim 2 to 0", [](const auto& x) { return functional::all_to_all(x, -1, 0); },
       [](const Tensors& x) { return exchanged(x, 2, 0); }},
      {"all_to_all along one dim", [](const auto& x) { return functional::all_to_all(x, 2, 2); },
       [](const Tensors& x) { return exchanged(x, 2, 2); }},
      {"shift by 1", [](const auto& x) { return functional::shift(x); },
       [](const Tensors& x) { return moved_round(x, 1); }},
      {"shift by -2", [](const auto& x) { return functional::shift(x, -2); },
       [](const Tensors& x) { return moved_round(x, -2); }},
      {"shift by 5", [](const auto& x) { return functional::shift(x, 5); },
       [](const Tensors& x) { return moved_round(x, 5); }},
  };
  return all;
}

// Returns this rank's input, which is not contiguous.
at::Tensor input_of(int rank) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + rank));  // one per thread
  return torch::randn({24, 2, 12}, generator, torch::kDouble).requires_grad_();
}
at::Tensor seen(const at::Tensor& leaf) { return leaf.transpose(0, 2); }

// Returns what a rank adds to the objective. It is not linear, so there is a second derivative.
at::Tensor loss_of(const at::Tensor& output, int rank) {
  return (output.pow(3) * at::arange(1, output.numel() + 1, output.options()).view(output.sizes()) / (rank + 1)).sum();
}
at::Tensor penalty_of(const at::Tensor& gradient, int rank) { return gradient.pow(2).sum() * (rank + 1); }

struct Derivatives {
  Tensors outputs, first, second;
};

Derivatives joined_derivatives(const Case& one, int world) {
  Tensors leaves, inputs;
  for (int rank = 0; rank < world; ++rank) inputs.push_back(seen(leaves.emplace_back(input_of(rank))));
  Derivatives found{one.joined(inputs), {}, {}};
  at::Tensor loss = torch::zeros({}, torch::kDouble), penalty = loss;
  for (int rank = 0; rank < world; ++rank) loss = loss + loss_of(found.outputs[static_cast<size_t>(rank)], rank);
  found.first = torch::autograd::grad({loss}, leaves, {}, true, /*create_graph=*/true);
  for (int rank = 0; rank < world; ++rank) penalty = penalty + penalty_of(found.first[static_cast<size_t>(rank)], rank);
  found.second = torch::autograd::grad({penalty}, leaves);
  return found;
}

class Functional : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static ThreadRanksOptions over() { return {.backend = std::get<0>(GetParam())}; }
  static int world() { return std::get<1>(GetParam()); }
};

TEST_P(Functional, MapsAndTheirFirstAndSecondDerivativesAreThoseOfTheJoinedGraph) {
  std::vector<Derivatives> expected;
  for (const auto& one : cases()) expected.push_back(joined_derivatives(one, world()));
  run_thread_ranks_with(world(), over(), [&](int rank) {
    for (size_t i = 0; i < cases().size(); ++i) {
      const auto& one = cases()[i];
      const auto own = static_cast<size_t>(rank);
      const auto leaf = input_of(rank);
      const auto output = one.call(seen(leaf));
      EXPECT_TRUE(at::allclose(output, expected[i].outputs[own], 1e-12, 1e-10)) << one.name;
      EXPECT_EQ(output.sizes(), expected[i].outputs[own].sizes()) << one.name;
      const auto first = torch::autograd::grad({loss_of(output, rank)}, {leaf}, {}, true, /*create_graph=*/true)[0];
      EXPECT_TRUE(at::allclose(first, expected[i].first[own], 1e-12, 1e-10)) << one.name;
      const auto second = torch::autograd::grad({penalty_of(first, rank)}, {leaf})[0];
      EXPECT_TRUE(at::allclose(second, expected[i].second[own], 1e-12, 1e-10)) << one.name;
    }
  });
}

// Each rank has some columns of the first layer and the same rows of the second, as in Megatron-LM.
TEST_P(Functional, ThePairAroundPartsOfALayerGivesTheGradientsOfTheWholeLayer) {
  torch::manual_seed(7);
  const auto x = torch::randn({3, 5}, torch::kDouble), in = torch::randn({5, 12}, torch::kDouble),
             out = torch::randn({12, 5}, torch::kDouble);
  const auto whole_x = x.clone().requires_grad_(), whole_in = in.clone().requires_grad_();
  whole_x.mm(whole_in).tanh().mm(out).pow(2).sum().backward();
  run_thread_ranks_with(world(), over(), [&](int rank) {
    const auto own_x = x.clone().requires_grad_();
    const auto part = [&](const at::Tensor& all, int dim) {
      return all.chunk(world(), dim)[static_cast<size_t>(rank)].clone();
    };
    const auto own_in = part(in, 1).requires_grad_();
    const auto hidden = functional::copy_to_ranks(own_x).mm(own_in).tanh();
    functional::reduce_from_ranks(hidden.mm(part(out, 0))).pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(own_x.grad(), whole_x.grad(), 1e-12, 1e-10));
    EXPECT_TRUE(at::allclose(own_in.grad(), part(whole_in.grad(), 1), 1e-12, 1e-10));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Functional,
                         testing::Combine(testing::Values("shm", "gloo", "hierarchical"), testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

// The backward of these collectives runs among the gathers and reductions of param groups. A parameter may be
// exchanged, too.
TEST(FunctionalAndFullyShard, AForwardThatExchangesActivationsAndAParameterTrainsAsTheJoinedOne) {
  torch::manual_seed(3);
  torch::nn::Sequential plain(torch::nn::Linear(4, 8), torch::nn::Linear(4, 4));
  const auto x = torch::randn({2, 4, 4});
  // In the joined graph, rank r gets half r of the features of both halves of the batch.
  const auto layer = [](torch::nn::Sequential& model, size_t i) { return model[i]->as<torch::nn::Linear>(); };
  const auto hidden = layer(plain, 0)->forward(x), weight = layer(plain, 1)->weight;
  at::Tensor loss = torch::zeros({});
  for (int rank = 0; rank < 2; ++rank) {
    const auto received = at::cat({hidden[0].chunk(2, 1)[static_cast<size_t>(rank)],
                                   hidden[1].chunk(2, 1)[static_cast<size_t>(rank)]}, 0);
    loss = loss + layer(plain, 1)->forward(received).mm(weight * 2).pow(2).sum();
  }
  (loss / 2).backward();  // fully_shard takes the mean of the ranks' gradients
  for (const std::string backend : {"shm", "gloo"}) {
    run_thread_ranks_with(2, {.backend = backend}, [&](int rank) {
      torch::nn::Sequential model(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone()));
      for (const auto& child : model->children()) fully_shard(*child);
      const auto group = fully_shard(*model);
      {
        const ForwardScope scope(group);
        const auto received = functional::all_to_all(layer(model, 0)->forward(x[rank]), 1, 0);
        layer(model, 1)
            ->forward(received)
            .mm(functional::all_reduce(layer(model, 1)->weight))
            .pow(2)
            .sum()
            .backward();
      }
      const auto expected = plain->named_parameters();
      for (const auto& parameter : model->named_parameters())
        EXPECT_TRUE(at::allclose(full_tensor(parameter.value().grad()), expected[parameter.key()].grad(), 1e-4, 1e-5))
            << backend << ' ' << parameter.key();
    });
  }
}

TEST(FunctionalErrors, WrongArgumentsAreRefusedBeforeAnythingMoves) {
  run_thread_ranks(2, [](int rank) {
    const auto refused = [](const std::function<at::Tensor()>& call, const std::string& part) {
      expect_error(call, {part});
    };
    const auto x = torch::ones({3, 4});
    refused([] { return functional::all_reduce({}); }, "all_reduce: expected a tensor, found an undefined");
    refused([&] { return functional::all_gather(x, 2); }, "expected a dim of a tensor of sizes [3, 4], found 2");
    refused([] { return functional::all_gather(torch::ones({}), 0); }, "expected a dim of a tensor of sizes []");
    refused([&] { return functional::reduce_scatter(x, 0); }, "2 equal parts along dim 0, found [3, 4]. Pad the");
    refused([&] { return functional::all_to_all(x, -2, 1); }, "2 equal parts along dim 0");
    refused([&] { return functional::all_to_all(x, 1, -3); }, "found -3");
    refused([&] { return functional::reduce_scatter(x.to(torch::kLong), 1); }, "floating point tensor, found Long");
    barrier();
    const auto own = rank == 0 ? torch::ones({2, 6}) : torch::ones({6, 2});
    expect_error<Mismatch>([&] { return functional::all_to_all(own, 0, 1); }, {"all_to_all of sizes [6, 2]"});
  });
}

}  // namespace
}  // namespace fsdp::test
