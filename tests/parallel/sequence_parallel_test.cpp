// Tests of SequenceParallel's scope: how it splits tensors, what it refuses, and what its methods send.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <torch/jit.h>
#include <torch/torch.h>

#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

at::Tensor attention(const at::Tensor& x, bool is_causal = false) {
  return torch::scaled_dot_product_attention(x, x, x, {}, 0.0, is_causal);
}

TEST(SequenceParallel, DealsHeadsAndTailsWithTheirPositionsAndPutsThemBackInOrder) {
  run_thread_ranks(2, [](int rank) {
    const SequenceParallel sequence;
    const auto whole = torch::arange(10, 17).repeat({2, 1});  // 7 tokens in 4 chunks of 2
    const auto own = sequence.shard(whole, -1, -100);
    const auto expected = rank == 0 ? torch::tensor({10, 11, 16, -100}) : torch::tensor({12, 13, 14, 15});
    EXPECT_TRUE(own[0].equal(expected)) << own[0];
    const auto places = rank == 0 ? torch::tensor({0, 1, 6, 6}) : torch::tensor({2, 3, 4, 5});
    EXPECT_TRUE(positions(4).equal(places)) << positions(4);
    EXPECT_TRUE(sequence.unshard(own, 1).equal(whole));
    {
      const SequenceParallel inner(nullptr, SequenceMethod::kRing);
      EXPECT_TRUE(positions(4).equal(torch::arange(4) + 4 * rank));
    }
    EXPECT_TRUE(positions(4).equal(places));
  });
  EXPECT_TRUE(positions(3).equal(torch::arange(3)));
}

TEST(SequenceParallel, OverTwoAxesARankHasAPartOfWhatOneOfTheRingHas) {
  run_thread_ranks(4, [](int) {
    const auto mesh = init_device_mesh({2, 2}, {"ring", "heads"});
    const SequenceParallel sequence(mesh.process_group("ring"), mesh.process_group("heads"));
    const auto whole = torch::arange(10, 17);  // 7 tokens in 4 chunks of 2, a chunk for each rank
    const std::vector<std::vector<int64_t>> tokens{{10, 11}, {16, -100}, {12, 13}, {14, 15}};
    const auto place = static_cast<size_t>(mesh.rank());
    const auto own = sequence.shard(whole, 0, -100);
    EXPECT_TRUE(own.equal(torch::tensor(tokens[place]))) << own;
    EXPECT_TRUE((positions(2) + 10).equal(torch::tensor(tokens[place]).where(own.ne(-100), 16))) << positions(2);
    EXPECT_TRUE(sequence.unshard(own, 0).equal(whole));
    EXPECT_EQ(sequence_mean(own.where(own.ne(-100), 0).sum(), own.ne(-100).sum()).item<double>(), 13);
  });
  expect_error([] { const SequenceParallel both(nullptr, nullptr); },
               {"SequenceParallel: expected the process group of the ring"});
}

TEST(SequenceParallel, GradientsGoThroughShardAndUnshard) {
  run_thread_ranks(3, [](int rank) {
    const SequenceParallel sequence;
    const auto whole = torch::arange(8, at::kDouble).requires_grad_();
    const auto back = sequence.unshard(sequence.shard(whole, 0) * (rank + 1), 0);
    (back * torch::arange(8)).sum().backward();  // on each of the 3 ranks
    const auto factors = functional::all_reduce(sequence.shard(torch::ones(8), 0).sum());
    EXPECT_EQ(factors.item<double>(), 8);
    // There are 6 chunks of 2 tokens, the last two of which are padding.
    const std::vector<std::vector<int64_t>> tokens{{0, 1}, {2, 3}, {4, 5, 6, 7}};
    const auto own = torch::tensor(tokens[static_cast<size_t>(rank)]);
    auto expected = torch::zeros(8, at::kDouble);
    expected.index_put_({own}, 3.0 * (rank + 1) * own.to(at::kDouble));
    EXPECT_TRUE(whole.grad().equal(expected)) << whole.grad();
  });
}

TEST(SequenceParallel, TheMeanIsThatOfAllTokensThatCountAndNotOfTheRanksMeans) {
  run_thread_ranks(2, [](int rank) {
    const auto sum = torch::tensor(rank == 0 ? 6.0 : 2.0, at::kDouble).requires_grad_();
    const auto count = torch::tensor(rank == 0 ? 3 : 1);
    EXPECT_EQ(sequence_mean(sum, count).item<double>(), 2.0);  // without a scope
    const SequenceParallel sequence;
    const auto mean = sequence_mean(sum * (rank + 1), count);
    EXPECT_EQ(mean.item<double>(), 2.5);
    mean.backward();
    EXPECT_EQ(sum.grad().item<double>(), 2 * (rank + 1) / 4.0);  // the mean over the ranks has half of it
  });
}

TEST(SequenceParallel, TorchScriptAndInferenceModeAreSeen) {
  const auto unit = torch::jit::compile("def f(x):\n  return torch.scaled_dot_product_attention(x, x, x)\n");
  const auto whole = torch::randn({1, 2, 8, 4});
  const auto expected = attention(whole);
  run_thread_ranks(2, [&](int) {
    const SequenceParallel sequence;
    const auto own = sequence.shard(whole, 2);
    EXPECT_TRUE(torch::allclose(sequence.unshard(unit->run_method("f", own).toTensor(), 2), expected, 1e-5, 1e-6));
    const c10::InferenceMode inference;
    EXPECT_TRUE(torch::allclose(sequence.unshard(attention(sequence.shard(whole, 2)), 2), expected, 1e-5, 1e-6));
  });
}

// Without a dim of heads, the mask's first dim is the batch.
TEST(SequenceParallel, TakesTensorsWithoutADimOfHeads) {
  const auto whole = torch::randn({3, 7, 4});
  const auto mask = torch::ones({3, 7, 7}, at::kBool).tril() & torch::arange(7).ne(torch::arange(3).view({3, 1, 1}));
  const auto expected = at::scaled_dot_product_attention(whole, whole, whole, mask);
  for (const auto method : {SequenceMethod::kHeadTail, SequenceMethod::kGather, SequenceMethod::kRingSelfAttention})
    run_thread_ranks(2, [&](int) {
      const SequenceParallel sequence(nullptr, method);
      const auto own = sequence.shard(whole, 1);
      const auto output = sequence.unshard(at::scaled_dot_product_attention(own, own, own, mask), 1);
      EXPECT_TRUE(torch::allclose(output, expected, 1e-5, 1e-6));
    });
}

TEST(SequenceParallel, OutsideOfTheScopeAndOnOneRankAttentionIsLibTorchs) {
  const auto x = torch::randn({2, 2, 6, 4});
  const auto expected = attention(x, true);
  run_thread_ranks(2, [&](int rank) {
    {
      const SequenceParallel sequence;
    }
    EXPECT_TRUE(attention(x, true).equal(expected));
    EXPECT_FALSE(at::scaled_dot_product_attention(x, x, x, {}, 0.5).equal(expected)) << rank;
  });
  run_thread_ranks(1, [&](int) {
    const SequenceParallel sequence;
    EXPECT_TRUE(sequence.unshard(attention(sequence.shard(x, 2), true), 2).equal(expected));
  });
}

TEST(SequenceParallelErrors, WhatCannotBeDoneIsRefusedBeforeAnythingMoves) {
  run_thread_ranks(2, [](int) {
    const SequenceParallel sequence(nullptr, SequenceMethod::kHeads);
    const auto refused = [](const std::function<at::Tensor()>& call, const std::string& part) {
      expect_error(call, {"[fsdp rank ", part});
    };
    const auto sent = [] { return traffic().inside_host.sent + traffic().between_hosts.sent; };
    const auto sent_before = sent();
    const auto q = torch::randn({2, 4, 5, 4}), k = q.narrow(1, 0, 2);
    const auto sdpa = [](const at::Tensor& query, const at::Tensor& key, const std::optional<at::Tensor>& mask = {},
                         double dropout = 0, bool is_causal = false, bool gqa = false) {
      return [=] { return at::scaled_dot_product_attention(query, key, key, mask, dropout, is_causal, {}, gqa); };
    };
    refused([&] { return sequence.shard(torch::ones({1, 4}), 0); }, "at least one token for each of 2 ranks, found a");
    refused([&] { return sequence.shard(torch::ones({4}), 1); }, "expected a dim of a tensor of sizes [4], found 1");
    refused([&] { return sequence.shard({}, 0); }, "SequenceParallel::shard: expected a tensor, found an undefined");
    refused([&] { return sequence.unshard({}, 0); }, "SequenceParallel::unshard: expected a tensor");
    refused(sdpa(q, q, {}, 0.1), "scaled_dot_product_attention: dropout inside attention is not supported");
    refused(sdpa(q, k), "with enable_gqa, a number that divides the number of query heads, found 2, 2 and 4");
    refused(sdpa(q.narrow(1, 0, 3), q.narrow(1, 0, 3)),
            "heads that are multiples of the 2 ranks, found 3 query heads and 3 key heads");
    refused(sdpa(q, q.narrow(1, 0, 1), {}, 0, false, true),
            "heads that are multiples of the 2 ranks, found 4 query heads and 1");
    refused(sdpa(q, q, torch::ones({5, 5}, at::kBool)), "of 10 queries and 10 keys, found sizes [5, 5]. Give every");
    refused(sdpa(q, q, torch::ones({5, 10}, at::kBool)), "found sizes [5, 10]");
    refused(sdpa(q, q, torch::ones({10, 10}), 0, true), "expected attn_mask or is_causal, found both");
    refused(sdpa(q, q, torch::ones({10, 10}).requires_grad_()), "a mask that requires no gradient");
    refused(sdpa(q, q, torch::ones({10, 10}, at::kLong)), "boolean or floating point, found Long");
    refused(sdpa(q, q.narrow(2, 0, 3), {}, 0, true), "found whole sequences of 10 and 6. Give the mask as attn_mask");
    refused(sdpa(q, q.to(at::kDouble)), "of the same floating point dtype, found Float, Double and Double");
    refused(sdpa(q[0][0], q[0][0]), "of three or four dims");
    refused(sdpa(q, q.narrow(0, 0, 1)), "of the same batch");
    refused(
        [&] {
          const auto seven = sequence.shard(torch::ones({7}), 0);
          return sequence.shard(torch::ones({8}), 0);
        },
        "sequences of 8 and of 7 tokens cannot share a scope: each rank has 4 tokens of both");
    refused(
        [] {
          const SequenceParallel head_tail;
          return attention(torch::ones({1, 1, 5, 4}));
        },
        "expected an even number of tokens");
    EXPECT_EQ(sent(), sent_before);
    const auto x = torch::randn({1, 2, 4, 4}).requires_grad_();
    const SequenceParallel ring;
    const auto output = attention(x);
    refused([&] { return torch::autograd::grad({output.sum()}, {x}, {}, true, /*create_graph=*/true)[0]; },
            "attention over several ranks has no second derivative");
    barrier();
  });
}

TEST(SequenceParallelErrors, OtherSizesOnOtherRanksAreAMismatch) {
  for (const std::string backend : {"shm", "gloo"})
    for (const auto method : {SequenceMethod::kHeadTail, SequenceMethod::kRing, SequenceMethod::kGather,
                              SequenceMethod::kHeads, SequenceMethod::kRingSelfAttention})
      run_thread_ranks_with(2, {.backend = backend}, [&](int rank) {
        const SequenceParallel sequence(nullptr, method);
        const auto own = torch::ones({1, 2, rank == 0 ? 4 : 6, 4});
        expect_error<Mismatch>([&] { return attention(own); }, {"rank 0", "rank 1"});
      });
}

struct Mixing : torch::nn::Module {
  enum class How { kNot, kMean, kCumsum, kOwnPositions, kShiftOfSecond };
  explicit Mixing(How its = How::kNot) : how(its) { register_module("layers", layers); }
  at::Tensor layer(size_t i, const at::Tensor& x) { return layers[i]->as<torch::nn::Linear>()->forward(x); }
  at::Tensor forward(const at::Tensor& given) {
    auto x = given;
    if (how == How::kOwnPositions) x = x + torch::arange(x.size(1)).view({1, -1, 1});
    x = layer(0, x);
    if (how == How::kMean) x = x - x.mean(1, true);
    x = attention(layer(1, x).unsqueeze(1), /*is_causal=*/true).squeeze(1).relu_();
    if (how == How::kShiftOfSecond) x = x.roll(1, 1);
    x = layer(2, x);
    return how == How::kCumsum ? x.transpose(1, 2).cumsum(2).transpose(1, 2) : x;
  }
  torch::nn::Sequential layers{torch::nn::Linear(8, 8), torch::nn::Linear(8, 8), torch::nn::Linear(8, 8)};
  How how;
};

TEST(SequenceParallelErrors, WhatMixesTokensByItselfIsNamedByItsOperatorAndModule) {
  using enum Mixing::How;
  const std::vector<std::pair<Mixing::How, std::string>> all{
      {kMean, "differs is aten::sub, in or after module 'layers.0'"},
      {kCumsum, "differs is aten::cumsum, in or after module 'layers.2'"},
      {kOwnPositions, "differs is aten::add, before any module"},
      {kShiftOfSecond, "differs is aten::roll, in or after module 'layers.1'"}};
  const auto input = torch::randn({2, 7, 8});
  Mixing one_by_one, recurrent;
  recurrent.layers->push_back("mixer", torch::nn::GRU(8, 8));
  for (const auto method : {SequenceMethod::kHeadTail, SequenceMethod::kGather})
    run_thread_ranks(2, [&](int) {
      const SequenceParallel sequence(nullptr, method);
      const auto check = [&](Mixing& model) {
        check_sequence_split(sequence, model, [&](const at::Tensor& x) { return model.forward(x); }, input);
      };
      check(one_by_one);
      for (const auto& [how, text] : all) {
        Mixing model(how);
        const auto sharded = fully_shard(model, {.sync_module_states = true});
        const ForwardScope scope(sharded);
        expect_error([&] { check(model); }, {"check_sequence_split: the ranks' parts", "they differ by", text});
      }
      expect_error([&] { check(recurrent); }, {"module 'layers.mixer', a torch::nn::GRU"});
    });
}

TEST(SequenceParallelErrors, ARankThatIsLostInsideAttentionIsNamed) {
  for (const auto method :
       {SequenceMethod::kHeadTail, SequenceMethod::kGather, SequenceMethod::kHeads, SequenceMethod::kRingSelfAttention})
    for (const std::string backend : {"shm", "gloo"}) {
      std::latch have_failed(2);  // a rank that leaves would be lost to those that still wait
      run_thread_ranks_with(3, {.backend = backend}, [&](int rank) {
        const SequenceParallel sequence(nullptr, method);
        const auto x = torch::ones({1, 3, 2, 4}).requires_grad_();
        const auto output = attention(x);
        if (rank == 1) return;  // leaves before its backward
        try {
          output.sum().backward();
          ADD_FAILURE() << "no error";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.rank(), 1) << backend << ' ' << static_cast<int>(method);
        }
        have_failed.arrive_and_wait();
      });
    }
}

// Bytes that a rank sends, in units of the bytes of one rank's keys; see docs/sequence.md.
struct Moved {
  SequenceMethod method;
  std::function<double(double ranks)> forward, backward;
};

TEST(SequenceParallelTraffic, EachMethodSendsWhatItsFormulaSays) {
  constexpr int64_t kHeads = 24, kKeyHeads = 12, kTokens = 16, kSize = 8;
  constexpr double kUnit = 2 * kKeyHeads * kTokens * kSize * sizeof(double);
  constexpr double kQueries = static_cast<double>(kHeads) / kKeyHeads;
  const auto heads = [](double n) { return (2 * kQueries + 2) * (n - 1) / n; };
  const std::vector<Moved> all{
      {SequenceMethod::kHeadTail, [](double n) { return 2 * (n - 1); }, [](double n) { return 2 * (n - 1) + 2 * n; }},
      {SequenceMethod::kRing, [](double n) { return 2 * (n - 1); }, [](double n) { return 2 * (n - 1) + 2 * n; }},
      {SequenceMethod::kGather, [](double n) { return 2 * (n - 1); }, [](double n) { return 2 * (n - 1); }},
      {SequenceMethod::kHeads, heads, heads},
      {SequenceMethod::kRingSelfAttention, [](double n) { return 2 * (n - 1); }, [](double n) { return 6 * (n - 1); }},
  };
  for (const int world : {2, 3, 4})
    run_thread_ranks_with(world, {.backend = "gloo"}, [&](int) {
      static_cast<void>(functional::all_reduce(torch::ones(1)));  // makes the order, once
      // Expects what this rank sends in an open scope.
      const auto expect_sent = [&](double forward, double backward, const std::string& what) {
        const auto query = torch::randn({2, kHeads, kTokens, kSize}, at::kDouble).requires_grad_();
        const auto key = torch::randn({2, kKeyHeads, kTokens, kSize}, at::kDouble).requires_grad_();
        const auto value = torch::randn({2, kKeyHeads, kTokens, kSize}, at::kDouble).requires_grad_();
        const auto sent = [] {
          const auto now = traffic();
          return static_cast<double>(now.between_hosts.sent + now.inside_host.sent);
        };
        const double start = sent();
        const auto output = at::scaled_dot_product_attention(query, key, value, {}, 0.0, true, {}, true);
        const double between = sent();
        output.sum().backward();
        EXPECT_EQ((between - start) / kUnit, forward) << what;
        EXPECT_EQ((sent() - between) / kUnit, backward) << what;
      };
      for (const auto& one : all) {
        const SequenceParallel sequence(nullptr, one.method);
        expect_sent(one.forward(world), one.backward(world), str_cat(world, ' ', static_cast<int>(one.method)));
      }
      if (world < 4) return;
      const auto mesh = init_device_mesh({2, 2}, {"ring", "heads"});
      static_cast<void>(functional::all_reduce(torch::ones(1), mesh.process_group("heads")));
      const SequenceParallel sequence(mesh.process_group("ring"), mesh.process_group("heads"));
      expect_sent(heads(2) + all[0].forward(2), heads(2) + all[0].backward(2), "two axes");
    });
}

}  // namespace
}  // namespace fsdp::test
