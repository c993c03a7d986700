// A group's own collectives, with worked examples: bf16 and fp8 on the wire for fp32 rows. What is gathered ahead
// within a limit of bytes, and whole parameters of rank 0 alone.

#include <gmock/gmock.h>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "support/axes.h"
#include "runtime/cost_net.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using torch::Tensor;

// Every rank has every value rounded, its own rows' too, so that all compute alike.
AllGather gather_in(c10::ScalarType dtype) {
  return
      [=](Communicator& ranks, const Tensor& output, const Tensor& input, std::span<const int64_t> offsets, Tag tag) {
        const auto low = torch::empty_like(output, dtype);
        const auto slice = low.narrow(0, offsets[static_cast<size_t>(ranks.rank())], input.numel()).copy_(input);
        return followed_by(ranks.all_gather(low, slice, offsets, std::move(tag)), output, [=] { output.copy_(low); });
      };
}

std::shared_ptr<Work> reduce_in_bf16(Communicator& ranks, const Tensor& output, std::vector<Piece> input,
                                     std::span<const int64_t> offsets, double scale, Tag tag) {
  for (auto& piece : input) piece.values = piece.values.to(torch::kBFloat16);
  const auto low = torch::zeros_like(output, torch::kBFloat16);
  return followed_by(ranks.reduce_scatter(low, std::move(input), offsets, scale, std::move(tag)), output,
                     [=] { output.copy_(low); });
}

void use_bf16(const Group& group) {
  group.set_custom_all_gather(gather_in(torch::kBFloat16));
  group.set_custom_reduce_scatter(reduce_in_bf16);
}

TEST(Bf16OnTheWire, HalvesTheBytesAndRoundsWhatTravelsOnly) {
  for (const int world : {2, 3}) {
    auto models = nets(world), plain_models = nets(world);
    Recorded recorded(world);
    recorded.options.backend = "gloo";
    run_thread_ranks(
        world,
        [&](int r) {
          const auto& log = recorded.log(r);
          auto &net = *models[static_cast<size_t>(r)], &plain_net = *plain_models[static_cast<size_t>(r)];
          const auto whole = plain_net.first->weight.detach().clone();
          const auto plain = shard_blocks(plain_net), group = shard_blocks(net);
          const auto of_a_step = [&](const Group& of, SmallNetImpl& it) {
            recorded.clear(r);
            forward_loss(of, it, 0).backward();
            return std::pair(log.bytes("all_gather"), log.bytes("reduce_scatter"));
          };
          const auto full = of_a_step(plain, plain_net);
          for (const auto& block : *net.blocks) use_bf16(group_of(*block));
          use_bf16(group);
          const auto low = of_a_step(group, net);
          EXPECT_EQ(low.first * 2, full.first);
          EXPECT_EQ(low.second * 2, full.second);
          EXPECT_TRUE(torch::equal(full_tensor(net.first->weight), whole)) << "rows are as they were";
          {
            ForwardScope scope(group);
            EXPECT_TRUE(torch::equal(net.first->weight.detach().clone(), whole.to(torch::kBFloat16).to(torch::kFloat)));
          }
          for (size_t i = 0; i < net.parameters().size(); ++i)
            EXPECT_LT(relative_difference(full_grad(plain_net.parameters()[i]), full_grad(net.parameters()[i])), 0.05);
          group.set_custom_all_gather({});
          ForwardScope scope(group);
          EXPECT_TRUE(torch::equal(net.first->weight.detach().clone(), whole));
        },
        recorded.options);
  }
}

// Weights of this size need no scale.
TEST(Fp8OnTheWire, QuartersTheBytesOfGathers) {
  auto models = nets(2);
  Recorded recorded(2);
  recorded.options.backend = "gloo";
  run_thread_ranks(
      2,
      [&](int r) {
        auto& net = *models[static_cast<size_t>(r)];
        const auto whole = net.first->weight.detach().clone();
        const auto group = shard_blocks(net);
        const auto gathered_in_a_step = [&] {
          recorded.clear(r);
          forward_loss(group, net, 0).backward();
          return recorded.log(r).bytes("all_gather");
        };
        const auto full = gathered_in_a_step();
        const auto gather = gather_in(torch::kFloat8_e4m3fn);
        for (const auto& block : *net.blocks) group_of(*block).set_custom_all_gather(gather);
        group.set_custom_all_gather(gather);
        EXPECT_EQ(gathered_in_a_step() * 4, full);
        EXPECT_TRUE(torch::equal(full_tensor(net.first->weight), whole)) << "rows are as they were";
        const ForwardScope scope(group);
        EXPECT_TRUE(
            torch::equal(net.first->weight.detach().clone(), whole.to(torch::kFloat8_e4m3fn).to(torch::kFloat)));
        EXPECT_LT(relative_difference(whole, net.first->weight.detach()), 0.07);  // a rounding is 1/16 at most
      },
      recorded.options);
}

// Numbers that bf16 has, so that nothing is rounded; a parameter that no rank used keeps no gradient.
struct Powers : torch::nn::Module {
  Tensor weight = register_parameter("weight", torch::full({5, 3}, 0.5)),
         unused = register_parameter("unused", torch::ones({4}));
};

TEST(Bf16OnTheWire, MayBeTheFirstStepOfAReductionOverReplicasToo) {
  run_thread_ranks(4, [](int rank) {
    Powers net;
    const auto group = shard_over(placement_over({2, 2}), module_tree(net), {});
    use_bf16(group);
    {
      ForwardScope scope(group);
      (net.weight * (rank + 1)).sum().backward();
    }
    EXPECT_TRUE(torch::equal(full_grad(net.weight), torch::full({5, 3}, 2.5)));
    EXPECT_FALSE(net.unused.grad().defined());
  });
}

TEST(Bf16OnTheWire, OfOneRankAloneIsAMismatch) {
  EXPECT_THROW(run_thread_ranks(2,
                                [](int rank) {
                                  Powers net;
                                  const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
                                  if (rank == 0) group.set_custom_reduce_scatter(reduce_in_bf16);
                                  ForwardScope scope(group);
                                  net.weight.sum().backward();
                                },
                                {.backend = "gloo"}),
               Mismatch);
}

int64_t bytes_of_whole(runtime::ParamGroup& group) {
  int64_t bytes = 0;
  for (const auto& flat : group.flats()) bytes += static_cast<int64_t>(flat.whole().bytes());
  return bytes;
}

TEST(GatheredAhead, IsWhatFitsIntoTheLimit) {
  for (const int64_t blocks : {0, 2, 3}) {
    SCOPED_TRACE(c10::str("room for ", blocks, " blocks"));
    auto models = nets(2);
    Recorded recorded(2);
    recorded.options.backend = "gloo";
    run_thread_ranks(
        2,
        [&](int r) {
          auto& net = *models[static_cast<size_t>(r)];
          int64_t block = 0;
          {
            const auto twin = nets(1);
            const auto numel_of = [](const torch::nn::Module& module) {
              int64_t numel = 0;
              for (const auto& parameter : module.parameters()) numel += parameter.numel();
              return numel;
            };
            block = numel_of(*(*twin[0]->blocks)[0]) * static_cast<int64_t>(sizeof(float));
          }
          FullyShardOptions options{.reshard_after_forward = Reshard::always(),
                                    .max_prefetched_bytes = blocks * (block + block / 4)};
          const auto group = shard_blocks(net, options);
          const int64_t root = bytes_of_whole(*param_groups(group)[0]),
                        of_a_block = bytes_of_whole(*param_groups(group)[1]);
          for (int step = 0; step < 3; ++step) {
            recorded.clear(r);
            group.reset_peak_stats();
            Tensor loss;
            {
              ForwardScope scope(group);
              auto h = torch::tanh(net.first->forward(samples({step, r * 2, 2}, {5}, torch::kFloat)));
              for (int64_t i = 0; i < kDepth; ++i) {
                h = (*net.blocks)[static_cast<size_t>(i)]->as<SmallBlock>()->forward(h);
                const auto last = std::min(kDepth - 1, i + (step == 0 ? 0 : blocks));
                EXPECT_EQ(recorded.subjects(r, "all_gather").back(), c10::str("blocks.", last)) << "after block " << i;
              }
              loss = net.head->forward(h).square().mean();
            }
            loss.backward();
            EXPECT_LE(group.stats().whole.peak, root + (1 + blocks) * of_a_block);
            if (step > 0) {
              EXPECT_EQ(group.stats().whole.peak, root + (1 + blocks) * of_a_block);
            }
          }
        },
        recorded.options);
  }
}

TEST(GatheredAhead, WithinALimitTrainsAsTheUnshardedModel) {
  FullyShardOptions options{.reshard_after_forward = Reshard::always(), .max_prefetched_bytes = 20'000};
  expect_training_equals_unsharded(small_net_training(options), 2);
}

TEST(GatheredAhead, ANegativeLimitIsRefused) {
  run_thread_ranks(1, [](int) {
    SmallNet net;
    try {
      fully_shard(net, {.max_prefetched_bytes = -1});
      ADD_FAILURE() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr("max_prefetched_bytes: expected 0 or more, found -1"));
    }
  });
}

TEST(SummonedByRank0Only, AreWholeThereAndRowsElsewhere) {
  for (const auto* backend : {"gloo", "shm"}) {
    auto models = nets(3);
    run_thread_ranks(3,
                     [&](int r) {
                       auto& net = *models[static_cast<size_t>(r)];
                       std::vector<Tensor> expected;
                       for (const auto& parameter : net.parameters()) expected.push_back(parameter.detach().clone());
                       const auto group = shard_blocks(net);
                       int64_t all = 0, largest = 0;
                       for (const auto& each : param_groups(group)) {
                         all += bytes_of_whole(*each);
                         largest = std::max(largest, bytes_of_whole(*each));
                       }
                       group.reset_peak_stats();
                       {
                         auto whole = summon_full_params(group, {.rank0_only = true});
                         torch::NoGradGuard no_grad;
                         for (size_t i = 0; i < expected.size(); ++i) {
                           const auto parameter = net.parameters()[i];
                           if (r == 0) {
                             EXPECT_TRUE(torch::equal(parameter.detach(), expected[i]));
                             parameter.zero_();
                           } else {
                             EXPECT_EQ(parameter.size(0), local_rows(parameter).count);
                           }
                         }
                         EXPECT_EQ(group.stats().whole.current, r == 0 ? all : 0);
                         EXPECT_THROW(whole.write_back(), UsageError);
                       }
                       EXPECT_LE(group.stats().whole.peak, r == 0 ? all : largest);
                       for (size_t i = 0; i < expected.size(); ++i)
                         EXPECT_TRUE(torch::equal(full_tensor(net.parameters()[i]), expected[i]))
                             << "nothing was written";
                       forward_loss(group, net, 0).backward();
                     },
                     {.backend = backend});
  }
}

}  // namespace
}  // namespace fsdp::test
