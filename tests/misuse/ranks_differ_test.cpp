// Tests of ranks with different models, options or orders, and of ranks that stay away. Every rank must get an error
// that names both sides.

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using Options = FullyShardOptions;

torch::Tensor one_row() { return torch::ones({1, 4}); }

// Expects that every rank that runs `fn` gets a Mismatch whose message contains all the words.
void expect_mismatch(int world, const std::function<void(int rank)>& fn, const Words& words,
                     ThreadRanksOptions options = {}, int line = __builtin_LINE()) {
  run_thread_ranks(world, [&](int r) { expect_error<Mismatch>([&] { fn(r); }, words, line); }, std::move(options));
}

// Returns the words that name the operations of ranks 0 and 1, or at least their beginnings.
Words they_run(const std::string& on_rank_0, const std::string& on_rank_1) {
  return {"rank 0 runs " + on_rank_0, "rank 1 runs " + on_rank_1};
}

struct Sharding {
  std::function<void(int rank)> act;
  std::string of_0 = "", of_1 = "";  // descriptions of the difference in the errors
  int world = 2;
};

// The operation of a rank with sync_module_states. A rank without that option runs another operation.
const std::string kTakesValues = "rank 0 runs broadcast of 'fully_shard Linear: ";

TEST(DifferentModelsAndOptions, AreFound) {
  const auto with = [](const Options& options) { fully_shard(*linear_alike(4, 3), options); };
  const auto changed = [](void (*change)(nn::LinearImpl&, int rank)) {
    return [=](int r) {
      auto linear = linear_alike(4, 3);
      change(*linear, r);
      fully_shard(*linear);
    };
  };
  const auto half = torch::kHalf, bf16 = torch::kBFloat16;
  const std::vector<Sharding> all{
      {[](int r) { fully_shard(*nn::Linear(4, 3 + r)); }},
      {[](int r) { fully_shard(r == 0 ? *nn::Linear(4, 2) : *nn::Linear(2, 4)); }},
      {[](int r) { fully_shard(*nn::Linear(nn::LinearOptions(4, 3).bias(r == 0))); }},
      {changed([](auto& linear, int r) { linear.to(r == 0 ? torch::kFloat : torch::kDouble); })},
      {changed([](auto& linear, int r) { linear.bias.set_requires_grad(r == 0); })},
      {changed([](auto& linear, int r) {
        if (r == 1) linear.register_module("child", nn::Identity());
        linear.register_parameter(r == 0 ? "alpha" : "beta", torch::ones({3}));
      })},
      {[=](int r) { with({.reshard_after_forward = r == 0 ? Reshard::always() : Reshard::never()}); }},
      {[=](int r) { with(r == 0 ? Options{.reshard_after_forward = Reshard::never()} : Options{}); }},
      {[=](int r) { with({.reshard_after_forward = r == 0 ? Reshard::always() : Reshard::within(2)}); }},
      {[=](int r) { with({.sync_module_states = r == 0}); }, kTakesValues},
      {[](int r) {
        auto linear = linear_alike(4, 3);
        fully_shard(*linear, r == 0 ? Options{.ignored_params = {linear->bias}} : Options{});
      }},
      {[=](int r) { with({.mp_policy = MixedPrecisionPolicy{.param_dtype = r == 0 ? half : bf16}}); }},
      {[=](int r) { with({.strategy = r == 0 ? Strategy::kShardGradOp : Strategy::kShardOptimizer}); },
       "2 parameters, 15 elements, kShardGradOp over 2 ranks",
       "2 parameters, 15 elements, kShardOptimizer over 2 ranks"},
      {[=](int r) { with({.strategy = r == 0 ? Strategy::kFullShard : Strategy::kReplicate}); },
       "kFullShard over 2 ranks", "kReplicate over 2 x 1 ranks"},
      {[=](int r) {
         const auto square = init_device_mesh({2, 2}, {"replicate", "shard"}), row = init_device_mesh();
         with({.mesh = r == 0 ? square : row});
       },
       "kFullShard over 2 x 2 ranks", "kFullShard over 4 ranks", 4}};
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    Words words{"@", "names, sizes, dtypes and options", all[i].of_0, all[i].of_1};
    for (const auto& word : they_run("all_reduce(min) of 'fully_shard Linear: ", "all_reduce(min) of 'fully_shard Linear: "))
      if (all[i].world == 2 && all[i].of_0 != kTakesValues) words.push_back(word);
    expect_mismatch(all[i].world, all[i].act, words);
  }
}

TEST(DifferentOrder, OfFullyShardIsFound) {
  expect_mismatch(3,
                  [](int r) {
                    MisuseNet net;
                    fully_shard({r == 1 ? net->up.get() : net->mid.get(), net->norm.get()});
                    ADD_FAILURE() << "rank " << r << " went on";
                  },
                  {"rank 1 runs all_reduce(min) of 'fully_shard list of 2 modules: 4 parameters, 38",
                   "'fully_shard list of 2 modules: 4 parameters, 50 elements"});
}

bool shares() { return test_backend() == "shm"; }

// Returns the first operation of a forward through a module.
std::string reading(const std::string& group) {
  return shares() ? "barrier of 'forward scope of " + group + "'" : "all_gather of '" + group + "'";
}

// Over a network, a block is gathered when it is read. Over shared memory the order matters only when blocks are
// reduced.
TEST(DifferentOrder, OfReadingBlocksIsFound) {
  expect_mismatch(
      2,
      [](int r) {
        auto blocks = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)); });
        fully_shard(*blocks->ptr(0));
        fully_shard(*blocks->ptr(1));
        auto model = fully_shard(blocks);
        auto h = one_row();
        {
          ForwardScope scope(model);
          for (size_t i : {r == 0 ? 0 : 1, r == 0 ? 1 : 0}) h = blocks[i]->as<nn::Linear>()->forward(h);
        }
        h.sum().backward();
      },
      shares() ? they_run("reduce_scatter of '1'", "reduce_scatter of '0'")
               : they_run("all_gather of '0'", "all_gather of '1'"));
}

// Names, sizes and counts are equal, so only the numbers of the groups distinguish the models.
TEST(DifferentOrder, OfTwinModelsIsFound) {
  struct Use {
    std::string operation;
    std::function<void(nn::Linear& first, nn::Linear& second)> act;
  };
  const std::vector<Use> uses{
      {reading("Linear"),
       [](nn::Linear& first, nn::Linear& second) {
         auto h = one_row();
         for (auto* linear : {&first, &second}) {
           ForwardScope scope(group_of(**linear));
           h = (*linear)->forward(h);
         }
       }},
      {"all_gather of 'full_tensor of weight'", [](auto& first, auto&) { return full_tensor(first->weight); }},
      {"all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 2'",
       [](auto& first, auto&) { clip_grad_norm_(group_of(*first), 1.0); }}};
  for (const auto& [operation, act] : uses) {
    auto words = they_run(operation, operation);
    words.insert(words.end(), {"(group)", ", group 1", ", group 2"});
    expect_mismatch(
        2,
        [&act = act](int r) {
          auto one = linear_alike(), other = linear_alike();
          fully_shard(one);
          fully_shard(other);
          act(r == 0 ? one : other, r == 0 ? other : one);
        },
        words);
  }
}

// An act that differs between two ranks, with a linear layer after a forward and a backward.
struct DifferentAct {
  std::function<void(Sharded<nn::Linear>&, int rank)> act;
  std::string on_rank_0, on_rank_1;
};

TEST(DifferentOperations, AndNumbersAreFound) {
  const std::string clip_1 = "all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 2'";
  const std::vector<DifferentAct> all{
      {[](auto& model, int r) {
         if (r == 0)
           model(one_row());
         else
           clip_grad_norm_(model, 1.0);
       },
       reading("Linear"), clip_1},
      {[](auto& model, int r) { clip_grad_norm_(model, 1.0 + r); }, clip_1,
       "all_reduce(sum) of 'clip_grad_norm_ of Linear to 2, norm 2'"},
      {[](auto& model, int r) { clip_grad_norm_(model, 1.0, 2.0 - r); }, clip_1,
       "all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 1'"},
      {[](auto& model, int r) {
         model.set_gradient_divide_factor(3.0 + r);
         model(one_row()).sum().backward();
       },
       "reduce_scatter of 'Linear divided by 3'", "reduce_scatter of 'Linear divided by 4'"}};
  for (const auto& one : all)
    expect_mismatch(
        2,
        [&](int r) {
          auto model = fully_shard(linear_alike());
          model(one_row()).sum().backward();
          one.act(model, r);
        },
        they_run(one.on_rank_0, one.on_rank_1));
}

// An act of rank 0 only. Rank 1 is alive, but stays away until rank 0 has given up.
struct Absence {
  std::function<void(Sharded<nn::Linear>&, const torch::Tensor& loss)> on_rank_0_only;
  Words words;
};

TEST(OnOneRankOnly, WhatTimesOutNamesTheOther) {
  // The last operation of rank 1 that the other rank can see, after rank 1's forward or backward.
  const auto last =
      shares() ? "rank 1: reduce_scatter of 'Linear' (#1), done" : "rank 1: all_gather of 'Linear' (#3), done";
  const auto backward = [](auto&, auto& loss) { loss.backward(); };
  const std::vector<Absence> all{
      {[](auto& model, auto&) { model(one_row()); }, {reading("Linear"), last, "that only some ranks run"}},
      {[](auto& model, auto&) { return full_tensor(model->weight); },
       {"all_gather of 'full_tensor of weight'", last, "that only some ranks run"}},
      {backward, {"reduce_scatter of 'Linear'", "rank 1: " + reading("Linear")}}};
  const auto time_out = [&](size_t i) {
    SCOPED_TRACE(i);
    auto words = all[i].words;
    words.emplace_back("timed out: rank 1 is alive but did not join");
    std::atomic<bool> gave_up = false;
    expect_mismatch(2,
                    [&](int r) {
                      auto model = fully_shard(linear_alike());
                      auto loss = model(one_row()).sum();
                      if (i < 2) loss.backward();
                      while (r == 1 && !gave_up) std::this_thread::sleep_for(std::chrono::milliseconds(10));
                      try {
                        if (r == 0) all[i].on_rank_0_only(model, loss);
                        barrier();
                      } catch (...) {
                        gave_up = true;
                        throw;
                      }
                    },
                    words, {.timeout = std::chrono::seconds(2)});
  };
  std::vector<std::future<void>> running;  // each of them waits for its timeout
  for (size_t i = 0; i < all.size(); ++i) running.push_back(std::async(std::launch::async, time_out, i));
}

// Rank 1 leaves out a block that rank 0 uses. Both ranks then go on to the same operation.
TEST(OnOneRankOnly, AGroupThatOnlySomeRanksReachIsAnErrorOnAll) {
  expect_mismatch(
      2,
      [](int r) {
        auto first = linear_alike(), second = linear_alike();
        nn::Sequential blocks(first, second);
        fully_shard(second);
        auto model = fully_shard(blocks);
        auto loss = [&] {
          ForwardScope scope(model);
          auto h = first(one_row());
          return (r == 0 ? second(h) : h).sum();
        }();
        loss.backward();
      },
      shares() ? they_run("reduce_scatter of '1'", "reduce_scatter of 'Sequential'")
               : Words{"rank 0: all_gather of '1'", "rank 1: all_gather of 'Sequential'", "that only some ranks run"},
      {.timeout = std::chrono::seconds(3)});
}

TEST(AfterAMismatch, EveryFurtherStepFailsAtOnceWithTheSameError) {
  run_thread_ranks(2, [](int r) {
    auto model = fully_shard(linear_alike());
    const auto first = [&] {
      if (r == 0)
        model(one_row());
      else
        barrier();
    };
    expect_error<Mismatch>(first, {"rank 1 runs barrier"});
    for (int again = 0; again < 2; ++again) expect_error<Mismatch>([&] { model(one_row()); }, {"rank 1 runs barrier"});
    EXPECT_EQ(model->weight.size(0), local_rows(model->weight).count) << "the scope was closed";
  });
}

}  // namespace
}  // namespace fsdp::test
