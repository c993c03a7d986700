// Tests of a model's state in memory and in one file.

#include "state/trainee.h"

namespace fsdp::test {
namespace {

TEST(StateDict, RowsAreViewsAndNothingIsCommunicated) {
  Recorded recorded(2);
  run_ranks(
      2,
      [&](SavedRun& run) {
        run.train(0);
        recorded.clear(rank());
        const auto entries = run.rows();
        EXPECT_THAT(recorded.log(rank()).entries(), IsEmpty());
        std::vector<Tensor> before;
        for (const auto& entry : entries) before.push_back(plain_copy(entry.rows));
        run.train(1);
        // The state of amsgrad is a maximum, which may stay the same.
        for (size_t i = 0; i < entries.size(); ++i)
          if (entries[i].rows.numel() > 0 && !entries[i].name.ends_with("max_exp_avg_sq")) {
            EXPECT_FALSE(torch::equal(plain_copy(entries[i].rows), before[i])) << entries[i].name;
          }
      },
      recorded.options);
}

// Loading would discard values, and saving would write values that do not exist.
TEST(StateDict, APlainModuleOnTheMetaDeviceIsNeitherLoadedNorSaved) {
  const TemporaryFolder folder;
  const auto net = tied_net();
  save_checkpoint(folder / "run", *net);
  save_safetensors(folder / "m.safetensors", *net);
  save(*net, folder / "m.pt");
  const auto empty = meta_init([] { return std::make_shared<SmallNetImpl>(); });
  const auto expect_refused = [](const char* operation, const auto& act) {
    EXPECT_THAT(error_of<UsageError>(act),
                AllOf(HasSubstr(std::string(operation) + ": "), HasSubstr("'first.weight' is on the meta device"),
                      HasSubstr("fsdp::materialize"), HasSubstr("fsdp::to_empty")));
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

// The entries have another dtype than this test's models.
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
  const auto expected = whole_values(*plain);
  Recorded recorded(3);
  for (const auto strategy : {Strategy::kFullShard, Strategy::kReplicate})
    run_thread_ranks(
        3,
        [&](int r) {
          const auto net = tied_net();
          const auto group = shard_blocks(*net, {.strategy = strategy});
          recorded.clear(r);
          // The entries that other ranks pass are ignored.
          const auto entries = r == 0 ? entries_of(*plain) : WholeEntries{{"nothing", torch::zeros({2})}};
          EXPECT_THAT(load_full_state_dict(entries, group), IsEmpty());
          std::vector<uint64_t> bytes, whole;
          for (const auto& entry : recorded.log(r).entries())
            if (entry.operation.starts_with("broadcast")) bytes.push_back(entry.bytes);
          for (const auto& [name, tensor] : entries_of(*plain)) whole.push_back(tensor.nbytes());
          EXPECT_THAT(bytes, UnorderedElementsAreArray(whole)) << "tensor by tensor";
          expect_same_values(expected, whole_values(*net));
        },
        recorded.options);
  const auto alone = tied_net();
  load_full_state_dict(entries_of(*plain), *alone);
  expect_same_values(expected, whole_values(*alone));
}

TEST(StateDict, WholeTensorsThatDoNotFitAreAnErrorOnEveryRankAndChangeNothing) {
  run_thread_ranks(2, [](int r) {
    const auto net = tied_net();
    const auto group = shard_blocks(*net);
    const auto before = whole_values(*net);
    WholeEntries entries;
    const auto expect_error = [&](const ::testing::Matcher<std::string>& says) {
      EXPECT_THAT(error_of([&] { load_full_state_dict(entries, group); }), says);
      expect_same_values(before, whole_values(*net));
    };
    if (r == 0) entries = entries_of(*tied_net(3));
    if (r == 0) entries.pop_back();
    expect_error(AllOf(HasSubstr("load_full_state_dict: ranks 0, 1: rank 0's tensors"),
                       HasSubstr("seen: is missing in the checkpoint")));
    if (r == 0) entries.emplace_back("seen", torch::empty({4}, torch::kMeta));
    expect_error(AllOf(HasSubstr("rank 0: tensor 'seen'"), HasSubstr("one on the meta device")));
    if (r == 0) entries.back().second = torch::zeros({5});
    expect_error(HasSubstr("seen: has sizes [4]; the checkpoint was saved with [5]"));
    EXPECT_THAT(load_full_state_dict(entries, group, {.strict = false}), ElementsAre(HasSubstr("seen: ")));
    EXPECT_TRUE(torch::equal(full_tensor(net->head->weight), tied_net(3)->head->weight));
  });
}

TEST(StateDict, AFileOfWholeTensorsIsReadByAnyRanksEachItsRows) {
  const TemporaryFolder folder;
  const auto path = folder / "model.safetensors";
  const auto expected = whole_values(*tied_net(3));
  for (const auto& [from, to] : {std::pair{1, 3}, {3, 2}}) {
    SCOPED_TRACE(c10::str(from, " ranks to ", to));
    run_thread_ranks(from, [&](int) { save_safetensors(path, shard_blocks(*tied_net(3))); });
    run_thread_ranks(to, [&](int) {
      const auto net = tied_net();
      EXPECT_THAT(load_safetensors(path, shard_blocks(*net)), IsEmpty());
      expect_same_values(expected, whole_values(*net));
    });
  }
  const auto alone = tied_net();
  load_safetensors(path, *alone);
  expect_same_values(expected, whole_values(*alone));
}

TEST(StateDict, AFileThatCannotBeWrittenOrDoesNotFitIsAnErrorOnEveryRank) {
  const TemporaryFolder folder;
  run_thread_ranks(2, [&](int) {
    const auto net = tied_net();
    const auto group = shard_blocks(*net);
    EXPECT_THAT(error_of([&] { save_safetensors(folder / "none/a", group); }),
                AllOf(HasSubstr("save_safetensors: rank 0: "), HasSubstr("none/a")));
    EXPECT_THAT(error_of([&] { load_safetensors(folder / "none", group); }), HasSubstr("ranks 0, 1: "));
    save_safetensors(folder / "small", fully_shard(*build_alike([] { return torch::nn::Linear(5, 3); })));
    EXPECT_THAT(error_of([&] { load_safetensors(folder / "small", group); }),
                AllOf(HasSubstr("first.weight: is missing in the checkpoint"),
                      HasSubstr("weight: is in the checkpoint, but the model has no such tensor")));
    EXPECT_THAT(load_safetensors(folder / "small", group, {.strict = false}),
                SizeIs(2 + net->parameters().size() - 1 + 1));
  });
}

}  // namespace
}  // namespace fsdp::test
