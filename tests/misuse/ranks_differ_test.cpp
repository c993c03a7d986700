// Ranks with different models, options or orders, and ranks that stay away: an error on every rank that names both.

#include <atomic>
#include <mutex>
#include <thread>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

// The messages of the exceptions of type `E` that every rank meets in `fn`.
template <class E>
std::vector<std::string> messages_of(int world, const std::function<void(int)>& fn, ThreadRanksOptions options = {}) {
  std::vector<std::string> messages(static_cast<size_t>(world));
  run_thread_ranks(
      world, [&](int r) { messages[static_cast<size_t>(r)] = message_of<E>([&] { fn(r); }); }, std::move(options));
  return messages;
}

// Rank 0 shards the first module, rank 1 the second.
void expect_models_differ(const std::function<nn::Linear(int rank)>& build,
                          const std::function<FullyShardOptions(int rank, nn::Linear&)>& options_of = {}) {
  auto messages = messages_of<Mismatch>(2, [&](int r) {
    auto linear = build(r);
    fully_shard(linear, options_of ? options_of(r, linear) : FullyShardOptions{});
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("rank 0 runs all_gather of 'fully_shard Linear: "),
                                   HasSubstr("rank 1 runs all_gather of 'fully_shard Linear: "),
                                   HasSubstr("names, sizes, dtypes and options"))));
  for (size_t r : {0, 1}) EXPECT_THAT(messages[r], HasSubstr(c10::str("[fsdp rank ", r, "/2]")));
}

TEST(DifferentModels, OfOtherSizesAreFound) {
  expect_models_differ([](int r) { return nn::Linear(4, 3 + r); });
  expect_models_differ([](int r) { return r == 0 ? nn::Linear(4, 2) : nn::Linear(2, 4); });
}

TEST(DifferentModels, WithAParameterMoreAreFound) {
  expect_models_differ([](int r) { return nn::Linear(nn::LinearOptions(4, 3).bias(r == 0)); });
}

TEST(DifferentModels, OfOtherDtypesAreFound) {
  expect_models_differ([](int r) {
    nn::Linear linear(4, 3);
    if (r == 1) linear->to(torch::kDouble);
    return linear;
  });
}

TEST(DifferentModels, OfWhichOneIsFrozenAreFound) {
  expect_models_differ([](int r) {
    nn::Linear linear(4, 3);
    linear->bias.set_requires_grad(r == 0);
    return linear;
  });
}

TEST(DifferentModels, WithOtherNamesAreFound) {
  expect_models_differ([](int r) {
    nn::Linear linear(nn::LinearOptions(4, 3).bias(false));
    if (r == 1) linear->register_module("child", nn::Identity());
    linear->register_parameter(r == 0 ? "alpha" : "beta", torch::ones({3}));
    return linear;
  });
}

TEST(DifferentOptions, AreFound) {
  auto build = [](int) { return nn::Linear(4, 3); };
  expect_models_differ(build, [](int r, nn::Linear&) {
    FullyShardOptions options;
    options.reshard_after_forward = r == 0 ? Reshard::always() : Reshard::never();
    return options;
  });
  expect_models_differ(build, [](int r, nn::Linear&) {
    FullyShardOptions options;
    if (r == 0) options.reshard_after_forward = Reshard::never();
    return options;
  });
  expect_models_differ(build, [](int r, nn::Linear&) {
    FullyShardOptions options;
    options.reshard_after_forward = r == 0 ? Reshard::always() : Reshard::within(world_size());
    return options;
  });
  expect_models_differ(build, [](int r, nn::Linear&) { return FullyShardOptions{.sync_module_states = r == 0}; });
  expect_models_differ(build, [](int r, nn::Linear& linear) {
    FullyShardOptions options;
    if (r == 0) options.ignored_params = {linear->bias};
    return options;
  });
}

TEST(DifferentOrder, OfFullyShardIsFound) {
  auto messages = messages_of<Mismatch>(3, [](int r) {
    MisuseNet net;
    fully_shard({r == 1 ? net->up.get() : net->mid.get(), net->norm.get()});
    ADD_FAILURE() << "rank " << r << " went on";
  });
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("rank 1 runs all_gather of 'fully_shard list of 2 modules: 4 parameters, 38"),
                         HasSubstr("'fully_shard list of 2 modules: 4 parameters, 50 elements"))));
}

// What a forward through a module runs first.
std::string reading(const std::string& group) {
  return test_backend() == "shm" ? "barrier of 'forward scope of " + group + "'" : "all_gather of '" + group + "'";
}

// Over a network blocks are gathered as they are read; over shared memory the order matters when they are reduced.
TEST(DifferentOrder, OfReadingBlocksIsFound) {
  auto messages = messages_of<Mismatch>(2, [](int r) {
    auto blocks = build_alike([] { return nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)); });
    fully_shard(*blocks->ptr(0));
    fully_shard(*blocks->ptr(1));
    auto model = fully_shard(blocks);
    auto x = torch::ones({1, 4});
    {
      ForwardScope scope(model);
      for (size_t i : {r == 0 ? 0 : 1, r == 0 ? 1 : 0}) x = blocks[i]->as<nn::Linear>()->forward(x);
    }
    x.sum().backward();
  });
  bool shares = test_backend() == "shm";
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr(shares ? "rank 0 runs reduce_scatter of '1'" : "rank 0 runs all_gather of '0'"),
                         HasSubstr(shares ? "rank 1 runs reduce_scatter of '0'" : "rank 1 runs all_gather of '1'"))));
}

// Names, sizes and counts are the same: only the numbers of the groups tell them apart.
TEST(DifferentOrder, OfTwinModelsIsFound) {
  const auto expect_found = [](const std::string& operation,
                               const std::function<void(int rank, nn::Linear& first, nn::Linear& second)>& use) {
    const auto messages = messages_of<Mismatch>(2, [&](int r) {
      auto one = build_alike([] { return nn::Linear(4, 4); }), other = build_alike([] { return nn::Linear(4, 4); });
      fully_shard(one);
      fully_shard(other);
      use(r, r == 0 ? one : other, r == 0 ? other : one);
    });
    EXPECT_THAT(messages,
                Each(AllOf(HasSubstr("(group)"), HasSubstr("rank 0 runs " + operation),
                           HasSubstr("rank 1 runs " + operation), HasSubstr(", group 1"), HasSubstr(", group 2"))));
  };
  expect_found(reading("Linear"), [](int, nn::Linear& first, nn::Linear& second) {
    auto x = torch::ones({1, 4});
    for (auto* linear : {&first, &second}) {
      ForwardScope scope(group_of(**linear));
      x = (*linear)->forward(x);
    }
  });
  expect_found("all_gather of 'full_tensor weight'",
               [](int, nn::Linear& first, nn::Linear&) { full_tensor(first->weight); });
  expect_found("all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 2'",
               [](int, nn::Linear& first, nn::Linear&) { clip_grad_norm_(group_of(*first), 1.0); });
}

TEST(DifferentOperations, ForwardAgainstClippingAreFound) {
  auto messages = messages_of<Mismatch>(2, [](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 4); });
    auto model = fully_shard(linear);
    if (r == 0)
      model(torch::ones({1, 4}));
    else
      clip_grad_norm_(model, 1.0);
  });
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("rank 0 runs " + reading("Linear")),
                         HasSubstr("rank 1 runs all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 2'"))));
}

// What `act` does after a backward differs between the ranks in a number only, which changes no size and no order.
void expect_numbers_differ(const std::function<void(Sharded<nn::Linear>&, int rank)>& act, const std::string& on_rank_0,
                           const std::string& on_rank_1) {
  auto messages = messages_of<Mismatch>(2, [&](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 4); });
    auto model = fully_shard(linear);
    model(torch::ones({1, 4})).sum().backward();
    act(model, r);
  });
  EXPECT_THAT(messages, Each(AllOf(HasSubstr("rank 0 runs " + on_rank_0), HasSubstr("rank 1 runs " + on_rank_1))));
}

TEST(DifferentNumbers, OfClippingAreFound) {
  expect_numbers_differ([](auto& model, int r) { clip_grad_norm_(model, 1.0 + r); },
                        "all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 2'",
                        "all_reduce(sum) of 'clip_grad_norm_ of Linear to 2, norm 2'");
  expect_numbers_differ([](auto& model, int r) { clip_grad_norm_(model, 1.0, 2.0 - r); },
                        "all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 2'",
                        "all_reduce(sum) of 'clip_grad_norm_ of Linear to 1, norm 1'");
}

TEST(DifferentNumbers, OfTheDivisorAreFound) {
  expect_numbers_differ(
      [](auto& model, int r) {
        model.set_gradient_divide_factor(3.0 + r);
        model(torch::ones({1, 4})).sum().backward();
      },
      "reduce_scatter of 'Linear divided by 3'", "reduce_scatter of 'Linear divided by 4'");
}

// Rank 1 stays away from what rank 0 does, though it is alive, until rank 0 has given up.
void expect_absence_is_named(const std::function<void(Sharded<nn::Linear>&)>& on_rank_0_only,
                             const std::string& operation, const std::string& last) {
  std::atomic<bool> gave_up = false;
  auto messages = messages_of<Mismatch>(2,
                                        [&](int r) {
                                          auto linear = build_alike([] { return nn::Linear(4, 4); });
                                          auto model = fully_shard(linear);
                                          model(torch::ones({1, 4})).sum().backward();
                                          if (r == 1)
                                            while (!gave_up) std::this_thread::sleep_for(std::chrono::milliseconds(10));
                                          try {
                                            if (r == 0) on_rank_0_only(model);
                                            barrier();
                                          } catch (...) {
                                            gave_up = true;
                                            throw;
                                          }
                                        },
                                        {.timeout = std::chrono::seconds(3), .wrap = {}});
  EXPECT_THAT(messages, Each(AllOf(HasSubstr(operation), HasSubstr("timed out: rank 1 is alive but did not join"),
                                   HasSubstr(last), HasSubstr("that only some ranks run"))));
}

// Of rank 1 after its backward, as far as the other rank can tell.
std::string last_operation() {
  return test_backend() == "shm" ? "rank 1: reduce_scatter of 'Linear' (#1), done"
                                 : "rank 1: all_gather of 'Linear' (#3), done";
}

TEST(OnOneRankOnly, AForwardTimesOutAndNamesTheOther) {
  expect_absence_is_named([](auto& model) { model(torch::ones({1, 4})); }, reading("Linear"), last_operation());
}

TEST(OnOneRankOnly, ABackwardTimesOutAndNamesTheOther) {
  std::atomic<bool> gave_up = false;
  auto messages = messages_of<Mismatch>(2,
                                        [&](int r) {
                                          auto linear = build_alike([] { return nn::Linear(4, 4); });
                                          auto model = fully_shard(linear);
                                          auto loss = model(torch::ones({1, 4})).sum();
                                          if (r == 1)
                                            while (!gave_up) std::this_thread::sleep_for(std::chrono::milliseconds(10));
                                          try {
                                            if (r == 0) loss.backward();
                                            barrier();
                                          } catch (...) {
                                            gave_up = true;
                                            throw;
                                          }
                                        },
                                        {.timeout = std::chrono::seconds(3), .wrap = {}});
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("reduce_scatter of 'Linear'"), HasSubstr("rank 1 is alive but did not join"),
                         HasSubstr("rank 1: " + reading("Linear")))));
}

// Rank 1 leaves a block out, which rank 0 takes; both go on to the same next operation.
TEST(OnOneRankOnly, AGroupThatOnlySomeRanksReachIsAnErrorOnAll) {
  auto messages = messages_of<Mismatch>(2,
                                        [](int r) {
                                          auto first = build_alike([] { return nn::Linear(4, 4); });
                                          auto second = build_alike([] { return nn::Linear(4, 4); });
                                          nn::Sequential blocks(first, second);
                                          fully_shard(second);
                                          auto model = fully_shard(blocks);
                                          auto loss = [&] {
                                            ForwardScope scope(model);
                                            auto h = first(torch::ones({1, 4}));
                                            return (r == 0 ? second(h) : h).sum();
                                          }();
                                          loss.backward();
                                        },
                                        {.timeout = std::chrono::seconds(3), .wrap = {}});
  if (test_backend() == "shm")
    EXPECT_THAT(messages, Each(AllOf(HasSubstr("rank 0 runs reduce_scatter of '1'"),
                                     HasSubstr("rank 1 runs reduce_scatter of 'Sequential'"))));
  else
    EXPECT_THAT(messages,
                Each(AllOf(HasSubstr("rank 0: all_gather of '1'"), HasSubstr("rank 1: all_gather of 'Sequential'"),
                           HasSubstr("that only some ranks run"))));
}

TEST(OnOneRankOnly, FullTensorTimesOutAndNamesTheOther) {
  expect_absence_is_named([](auto& model) { full_tensor(model->weight); }, "all_gather of 'full_tensor weight'",
                          last_operation());
}

TEST(ARankThatLeft, IsLostToAForwardOfTheOthers) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_thread_ranks(3, [&](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 4); });
    auto model = fully_shard(linear);
    if (r == 1) return;
    auto message = message_of<PeerLost>([&] { model(torch::ones({1, 4})); });
    std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  EXPECT_THAT(messages, AllOf(SizeIs(2), Each(AllOf(HasSubstr(reading("Linear")), HasSubstr("rank 1 has left")))));
}

TEST(AfterAMismatch, EveryFurtherStepFailsAtOnceWithTheSameError) {
  run_thread_ranks(2, [](int r) {
    auto linear = build_alike([] { return nn::Linear(4, 4); });
    auto model = fully_shard(linear);
    auto x = torch::ones({1, 4});
    auto first = message_of<Mismatch>([&] {
      if (r == 0)
        model(x);
      else
        barrier();
    });
    EXPECT_THAT(first, HasSubstr("rank 1 runs barrier"));
    for (int again = 0; again < 2; ++again)
      EXPECT_THAT(message_of<Mismatch>([&] { model(x); }), HasSubstr("rank 1 runs barrier"));
    EXPECT_EQ(linear->weight.size(0), local_rows(linear->weight).count) << "the scope was closed";
  });
}

}  // namespace
}  // namespace fsdp::test
