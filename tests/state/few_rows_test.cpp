// Tests that parameters with few rows are saved, loaded and reported as all others are, although a rank's rows of them
// may begin and end inside an index of dim 0.

#include <fsdp/async_save.h>

#include "compare.h"
#include "rewrite.h"
#include "state/format/checkpoint_reader.h"
#include "state/format/sizes.h"
#include "state/trainee.h"
#include "support/few_rows_net.h"

namespace fsdp::test {
namespace {

struct FewRowsLayout : Layout {
  int world;
  FewRowsLayout(int ranks, const Layout& layout = {}) : Layout(layout), world(ranks) {}
  std::string text() const { return c10::str(world, " ranks, ", Layout::text()); }
};

// A net and its optimizer. A run that was made without options is unsharded.
struct FewRowsRun {
  std::shared_ptr<FewRowsNetImpl> net = build_alike([] {
    auto model = std::make_shared<FewRowsNetImpl>();
    model->to(torch::kDouble);
    return model;
  });
  std::optional<Group> group;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  explicit FewRowsRun(const std::optional<FullyShardOptions>& options = std::nullopt) {
    if (options) {
      shard_children_then_root(*net, *options);
      group = group_of(*net);
    }
    optimizer = made<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-2));
  }
  // No forward is needed to make gradients. Those of a step are equal on every rank.
  void step(int number) const {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : net->parameters()) {
      const auto whole = samples({number, 0, 1}, global_sizes(parameter), torch::kDouble).squeeze(0);
      auto gradient = torch::zeros_like(parameter);
      parameter.mutable_grad() = gradient.add_(whole);
    }
    optimizer->step();
  }
  std::vector<StateEntry> rows() const {
    auto all = group ? state_dict(*group) : state_dict(*net);
    auto more = group ? state_dict(*optimizer, *group) : state_dict(*optimizer, *net);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  LoadedCheckpoint load(const std::string& folder) const {
    return group ? load_checkpoint(folder, *group, optimizer.get()) : load_checkpoint(folder, *net, optimizer.get());
  }
};

void on_few_rows(const FewRowsLayout& layout, const std::function<void(FewRowsRun&)>& act) {
  SCOPED_TRACE(layout.text());
  run_thread_ranks(layout.world, [&](int) {
    FewRowsRun run(layout.options());
    act(run);
  });
}

const FewRowsLayout kFewRowsLayouts[] = {{2},
                                         {1},
                                         {3},
                                         {2, {Strategy::kReplicate}},
                                         {4, {.mesh = {2, 2}}},
                                         {3, {Strategy::kShardOptimizer}},
                                         {2, {.param_dtype = torch::kBFloat16}}};

TEST(FewRows, AreOfSeveralExpertsOnARank) {
  on_few_rows({3}, [](FewRowsRun& run) {
    EXPECT_EQ(run.net->experts->value.sizes(), (std::vector<int64_t>{60, 460}));
    EXPECT_EQ(run.net->position->value.sizes(), (std::vector<int64_t>{10, 600}));
    EXPECT_EQ(run.net->head->weight.dim(), 1) << "single elements";
    EXPECT_EQ(local_rows(run.net->experts->value), (LocalRowRange{60 * rank(), 60}));
  });
}

TEST(FewRows, AnyRanksLoadWhatAnyOtherSaved) {
  const TemporaryFolder folder;
  WholeState saved[std::size(kFewRowsLayouts)];
  const auto path = [&](size_t i) { return folder / std::to_string(i); };
  for (size_t own = 0; own < std::size(kFewRowsLayouts); ++own) {
    on_few_rows(kFewRowsLayouts[own], [&](FewRowsRun& run) {
      run.step(static_cast<int>(own));
      save_checkpoint(path(own), *run.group, run.optimizer.get());
      saved[own].add(run.rows());
      for (size_t i = 0; i < own; ++i) {
        run.load(path(i));
        EXPECT_EQ(saved[i].difference(run.rows()), "") << "saved by " << kFewRowsLayouts[i].text();
      }
    });
    EXPECT_THAT(state::problems_of(path(own)), IsEmpty());
    const FewRowsRun plain;
    plain.load(path(own));
    EXPECT_EQ(saved[own].difference(plain.rows()), "");
  }
}

TEST(FewRows, AreSavedWhileTrainingGoesOn) {
  const TemporaryFolder folder;
  WholeState saved;
  for (const int world : {3, 2})
    on_few_rows(world, [&](FewRowsRun& run) {
      if (world == 2) {
        run.load(folder.path());
        EXPECT_EQ(saved.difference(run.rows()), "");
        return;
      }
      AsyncSave saving;
      run.step(1);
      saved.add(run.rows());
      async_save_checkpoint(saving, folder.path(), *run.group, run.optimizer.get());
      run.step(2);
      saving.wait();
    });
}

TEST(FewRows, AreSentToHostsThatDoNotSeeThem) {
  const TemporaryFolder disks;
  WholeState saved;
  const std::vector<int> hosts{0, 1};
  for (const bool loads : {false, true})
    run_thread_ranks(
        2,
        [&](int) {
          FewRowsRun run(FullyShardOptions{});
          const auto disk = disks / std::to_string(loads ? 1 - rank() : rank());
          if (loads) {
            run.load(disk);
            EXPECT_EQ(saved.difference(run.rows()), "");
            return;
          }
          run.step(1);
          save_checkpoint(disk, *run.group, run.optimizer.get());
          saved.add(run.rows());
        },
        {.backend = "gloo", .hosts = hosts});
}

TEST(FewRows, GoToWholeTensorsAndBack) {
  const TemporaryFolder folder;
  for (const auto& layout : {FewRowsLayout(3), FewRowsLayout(2)})
    on_few_rows(layout, [&](FewRowsRun& run) {
      FewRowsRun other(layout.options());
      run.step(1);
      const auto whole = full_state_dict(*run.group);
      const auto same_rows = [](const std::vector<StateEntry>& a, const std::vector<StateEntry>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i)
          EXPECT_TRUE(torch::equal(plain_copy(a[i].rows), plain_copy(b[i].rows))) << a[i].name;
      };
      const auto of_model = [](const FewRowsRun& of) { return state_dict(*of.group); };
      other.step(2);
      load_full_state_dict(whole, *other.group);
      same_rows(of_model(run), of_model(other));

      other.step(3);
      const auto file = folder / "model.safetensors";
      save_safetensors(file, *run.group);
      load_safetensors(file, *other.group);
      same_rows(of_model(run), of_model(other));

      other.step(4);
      fsdp::save(*run.group, folder / "model.pt");
      fsdp::save(*run.optimizer, folder / "optimizer.pt");
      fsdp::load(*other.group, folder / "model.pt");
      fsdp::load(*other.optimizer, folder / "optimizer.pt");
      same_rows(run.rows(), other.rows());
    });
}

TEST(FewRows, AreInTheFilesThatFsdpCkptWrites) {
  const TemporaryFolder folder;
  const auto resharded = folder / "resharded", file = folder / "model.safetensors";
  WholeState saved;
  on_few_rows({3}, [&](FewRowsRun& run) {
    run.step(1);
    save_checkpoint(folder / "saved", *run.group, run.optimizer.get());
    saved.add(run.rows());
  });
  const auto source = ckpt::open_source(folder / "saved");
  ckpt::reshard_to(*source, resharded, 2, std::nullopt);
  ckpt::export_to(*source, file, std::nullopt);
  for (const auto& [name, misfit, largest] : ckpt::compare(*source, *ckpt::open_source(resharded), /*training=*/true)) {
    if (!name.starts_with("random.")) EXPECT_EQ(misfit, "") << name;
    EXPECT_EQ(largest, 0) << name;
  }
  on_few_rows({2}, [&](FewRowsRun& run) {
    run.load(resharded);
    EXPECT_EQ(saved.difference(run.rows()), "");
    FewRowsRun other{FullyShardOptions{}};
    other.step(2);
    load_safetensors(file, *other.group);
    for (size_t i = 0; i < run.net->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(plain_copy(run.net->parameters()[i]), plain_copy(other.net->parameters()[i])));
  });
}

// One rank's rows of such a tensor are boxes of it, each in its own file. Rows of other tensors are ranges of dim 0.
TEST(FewRows, AreBoxesInFiles) {
  const TemporaryFolder folder;
  on_few_rows(3, [&](FewRowsRun& run) { save_checkpoint(folder.path(), *run.group); });
  const auto checkpoint = state::find_checkpoint(folder.path());
  const auto manifest = state::read_manifest(checkpoint);
  std::vector<std::string> experts;
  for (const auto& part : manifest.model.at("experts.value").parts)
    experts.push_back(part.file + " " + state::text_of(part.offsets) + " " + state::text_of(part.sizes));
  EXPECT_THAT(experts, ElementsAre("model-00000-of-00003.safetensors [0, 0, 0] [1, 36, 460]",
                                   "model-00000-of-00003-1.safetensors [1, 0, 0] [1, 24, 460]",
                                   "model-00001-of-00003.safetensors [1, 24, 0] [1, 12, 460]",
                                   "model-00001-of-00003-1.safetensors [2, 0, 0] [1, 36, 460]",
                                   "model-00001-of-00003-2.safetensors [3, 0, 0] [1, 12, 460]",
                                   "model-00002-of-00003.safetensors [3, 12, 0] [1, 24, 460]",
                                   "model-00002-of-00003-1.safetensors [4, 0, 0] [1, 36, 460]"));
  const auto text = state::read_manifest_text(checkpoint);
  EXPECT_THAT(text, HasSubstr("\"version\": 2"));
  EXPECT_THAT(text.substr(text.find("\"first.weight\"")), HasSubstr("\"first_row\": 0,\n     \"rows\": 154"));
}

}  // namespace
}  // namespace fsdp::test
