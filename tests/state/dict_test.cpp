// A model's state in memory and in one file.

#include <fsdp/deferred_init.h>
#include <fsdp/optim.h>
#include <fsdp/serialize.h>
#include <fsdp/state_dict.h>
#include <gmock/gmock.h>

#include "support/recorded_ranks.h"
#include "support/small_net.h"
#include "state/files.h"

namespace fsdp::test {
namespace {

using state::TemporaryFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

// A tied weight, a scalar and a buffer beside layers of every size.
std::shared_ptr<SmallNetImpl> tied_net(double factor = 1) {
  return build_alike([=] {
    auto net = std::make_shared<SmallNetImpl>();
    net->register_parameter("scalar", torch::tensor(0.25));
    net->register_parameter("again", net->head->weight);
    net->register_buffer("seen", torch::arange(4));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) parameter.mul_(factor);
    return net;
  });
}

TEST(StateDict, RowsAreViewsAndNothingIsCommunicated) {
  Recorded recorded(2);
  run_thread_ranks(
      2,
      [&](int r) {
        const auto net = tied_net();
        const auto group = shard_blocks(*net);
        torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
        const auto train = [&] {
          torch::Tensor loss;
          {
            const ForwardScope scope(group);
            loss = small_net_loss(*net, {0, r * 2, 2});
          }
          loss.backward();
          optimizer.step();
        };
        train();
        auto& log = recorded.log(r);
        log.clear();
        const auto rows = state_dict(group), moments = state_dict(optimizer, group);
        EXPECT_THAT(log.entries(), IsEmpty());
        const auto values_of = [](const std::vector<StateEntry>& entries) {
          std::vector<torch::Tensor> values;
          for (const auto& entry : entries) values.push_back(entry.rows.clone());
          return values;
        };
        const auto rows_before = values_of(rows), moments_before = values_of(moments);
        train();
        const auto rows_after = values_of(rows), moments_after = values_of(moments);
        for (size_t i = 0; i < rows.size(); ++i) {
          const bool is_trained = rows[i].name != "seen" && rows[i].name != "scalar" && rows[i].rows.numel() > 0;
          EXPECT_EQ(torch::equal(rows_after[i], rows_before[i]), !is_trained) << rows[i].name;
        }
        for (size_t i = 0; i < moments.size(); ++i)
          if (moments[i].rows.numel() > 0) {
            EXPECT_FALSE(torch::equal(moments_after[i], moments_before[i])) << moments[i].name;
          }
      },
      recorded.options);
}

// They would take or give values that nobody has.
TEST(StateDict, APlainModuleOnTheMetaDeviceIsNeitherLoadedNorSaved) {
  const TemporaryFolder folder;
  const auto net = tied_net();
  save_checkpoint(folder / "run", *net);
  save_safetensors(folder / "m.safetensors", *net);
  save(*net, folder / "m.pt");
  const auto empty = meta_init([] { return std::make_shared<SmallNetImpl>(); });
  const auto expect_refused = [](const char* operation, const auto& act) {
    try {
      act();
      ADD_FAILURE() << operation << ": expected an error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what_without_backtrace(),
                  AllOf(HasSubstr(std::string(operation) + ": "), HasSubstr("'first.weight' is on the meta device"),
                        HasSubstr("fsdp::materialize"), HasSubstr("fsdp::to_empty")));
    }
  };
  expect_refused("load_checkpoint", [&] { load_checkpoint(folder / "run", *empty, nullptr, {.strict = false}); });
  expect_refused("load_safetensors", [&] { load_safetensors(folder / "m.safetensors", *empty, {.strict = false}); });
  expect_refused("load", [&] { load(*empty, folder / "m.pt", {.strict = false}); });
  expect_refused("save_checkpoint", [&] { save_checkpoint(folder / "none", *empty); });
  expect_refused("save_safetensors", [&] { save_safetensors(folder / "none.safetensors", *empty); });
  expect_refused("save", [&] { save(*empty, folder / "none.pt"); });
  EXPECT_FALSE(std::filesystem::exists(folder / "none.safetensors"));
}

TEST(StateDict, WholeTensorsComeToRank0) {
  run_thread_ranks(3, [](int r) {
    const auto plain = tied_net(), net = tied_net();
    const auto entries = full_state_dict(shard_blocks(*net));
    if (r > 0) {
      EXPECT_THAT(entries, IsEmpty());
      return;
    }
    const auto parameters = plain->named_parameters(), buffers = plain->named_buffers();
    EXPECT_THAT(entries, SizeIs(parameters.size() - 1 + buffers.size()));
    for (const auto& [name, whole] : entries) {
      const auto* found = parameters.find(name);
      EXPECT_TRUE(torch::equal(whole, (found ? *found : buffers[name]).detach())) << name;
    }
  });
}

using WholeEntries = std::vector<std::pair<std::string, torch::Tensor>>;

// In another dtype than the models of this test.
WholeEntries entries_of(const SmallNetImpl& net) {
  WholeEntries entries;
  for (const auto& parameter : net.named_parameters())
    if (parameter.key() != "again")
      entries.emplace_back(parameter.key(), parameter.value().detach().to(torch::kDouble));
  for (const auto& buffer : net.named_buffers()) entries.emplace_back(buffer.key(), buffer.value());
  return entries;
}

TEST(StateDict, WholeTensorsOfRank0AreLoadedByRanksThatKeepTheirRows) {
  const auto plain = tied_net(3);
  Recorded recorded(3);
  for (const auto strategy : {Strategy::kFullShard, Strategy::kReplicate})
    run_thread_ranks(
        3,
        [&](int r) {
          const auto net = tied_net();
          net->named_buffers()["seen"].zero_();
          const auto group = shard_blocks(*net, {.strategy = strategy});
          auto& log = recorded.log(r);
          log.clear();
          // What the others give is not looked at.
          const auto entries = r == 0 ? entries_of(*plain) : WholeEntries{{"nothing", torch::zeros({2})}};
          EXPECT_THAT(load_full_state_dict(entries, group), IsEmpty());
          auto sent = log.entries();
          std::erase_if(sent, [](const auto& entry) { return !entry.operation.starts_with("broadcast"); });
          std::vector<uint64_t> bytes, expected;
          for (const auto& entry : sent) bytes.push_back(entry.bytes);
          for (const auto& [name, tensor] : entries_of(*plain)) expected.push_back(tensor.nbytes());
          EXPECT_THAT(bytes, UnorderedElementsAreArray(expected)) << "tensor by tensor";
          for (const auto& parameter : net->named_parameters())
            EXPECT_TRUE(torch::equal(full_tensor(parameter.value()), plain->named_parameters()[parameter.key()]))
                << parameter.key();
          EXPECT_TRUE(torch::equal(net->named_buffers()["seen"], torch::arange(4)));
        },
        recorded.options);
  const auto alone = tied_net();
  load_full_state_dict(entries_of(*plain), *alone);
  EXPECT_TRUE(torch::equal(alone->head->weight, plain->head->weight)) << "without ranks";
}

TEST(StateDict, WholeTensorsThatDoNotFitAreAnErrorOnEveryRankAndChangeNothing) {
  run_thread_ranks(2, [](int r) {
    const auto net = tied_net(), before = tied_net();
    const auto group = shard_blocks(*net);
    const auto expect_error = [&](const WholeEntries& entries, const ::testing::Matcher<std::string>& says) {
      try {
        load_full_state_dict(entries, group);
        ADD_FAILURE() << "expected an error";
      } catch (const Error& error) {
        EXPECT_THAT(std::string(error.what_without_backtrace()), says);
      }
      for (const auto& parameter : net->named_parameters())
        EXPECT_TRUE(torch::equal(full_tensor(parameter.value()), before->named_parameters()[parameter.key()]));
    };
    WholeEntries entries;
    if (r == 0) entries = entries_of(*tied_net(3));
    if (r == 0) entries.pop_back();
    expect_error(entries, AllOf(HasSubstr("load_full_state_dict: ranks 0, 1: rank 0's tensors"),
                                HasSubstr("seen: missing")));
    if (r == 0) entries.emplace_back("seen", torch::empty({4}, torch::kMeta));
    expect_error(entries, AllOf(HasSubstr("rank 0: tensor 'seen'"), HasSubstr("one on the meta device")));
    if (r == 0) entries.back().second = torch::zeros({5});
    expect_error(entries, HasSubstr("seen: has sizes [4], saved were [5]"));
    EXPECT_THAT(load_full_state_dict(entries, group, {.strict = false}), ElementsAre(HasSubstr("seen: ")));
    EXPECT_TRUE(torch::equal(full_tensor(net->head->weight), tied_net(3)->head->weight));
  });
}

TEST(StateDict, AFileOfWholeTensorsIsReadByAnyRanksEachItsRows) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  for (const int from : {1, 3})
    for (const int to : {1, 2, 4}) {
      SCOPED_TRACE(c10::str(from, " ranks to ", to));
      run_thread_ranks(from, [&](int) { save_safetensors(path, shard_blocks(*tied_net(3))); });
      run_thread_ranks(to, [&](int) {
        const auto plain = tied_net(3), net = tied_net();
        net->named_buffers()["seen"].zero_();
        EXPECT_THAT(load_safetensors(path, shard_blocks(*net)), IsEmpty());
        for (const auto& parameter : net->named_parameters())
          EXPECT_TRUE(torch::equal(full_tensor(parameter.value()), plain->named_parameters()[parameter.key()]))
              << parameter.key();
        EXPECT_TRUE(torch::equal(net->named_buffers()["seen"], torch::arange(4)));
      });
    }
  const auto plain = tied_net(3), alone = tied_net();
  load_safetensors(path, *alone);
  EXPECT_TRUE(torch::equal(alone->head->weight, plain->head->weight)) << "without ranks";
}

TEST(StateDict, AFileThatCannotBeWrittenOrDoesNotFitIsAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = tied_net();
    const auto group = shard_blocks(*net);
    const auto error_of = [&](const auto& act) -> std::string {
      try {
        act();
      } catch (const Error& error) {
        return error.what_without_backtrace();
      }
      return {};
    };
    EXPECT_THAT(error_of([&] { save_safetensors(folder / "none/a", group); }),
                AllOf(HasSubstr("save_safetensors: rank 0: "), HasSubstr("none/a")));
    EXPECT_THAT(error_of([&] { load_safetensors(folder / "none", group); }), HasSubstr("ranks 0, 1: "));
    save_safetensors(folder / "small",
                     fully_shard(*build_alike([] { return std::make_shared<torch::nn::LinearImpl>(5, 3); })));
    EXPECT_THAT(error_of([&] { load_safetensors(folder / "small", group); }),
                AllOf(HasSubstr("first.weight: missing"), HasSubstr("weight: extra")));
    EXPECT_THAT(load_safetensors(folder / "small", group, {.strict = false}),
                SizeIs(2 + net->parameters().size() - 1 + 1));
  });
}

}  // namespace
}  // namespace fsdp::test
