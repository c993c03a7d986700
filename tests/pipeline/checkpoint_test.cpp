// Tests of checkpoints of all stages, which other stages and the whole model load.

#include <gmock/gmock.h>

#include <map>
#include <mutex>

#include "pipeline/stages.h"
#include "state/files.h"
#include "support/error_text.h"

namespace fsdp::test {
namespace {

using WholeValues = std::map<std::string, at::Tensor>;

WholeValues values_in(const torch::nn::Module& module) {
  WholeValues values;
  for (const auto& parameter : module.named_parameters())
    values[parameter.key()] = full_tensor(parameter.value()).detach().clone();
  for (const auto& buffer : module.named_buffers()) values[buffer.key()] = buffer.value().clone();
  return values;
}

void expect_values(const WholeValues& expected, const WholeValues& found, bool are_same_bits) {
  for (const auto& [name, value] : found) {
    const auto& there = expected.at(name);
    EXPECT_TRUE(are_same_bits ? at::equal(there, value) : at::allclose(there, value, 1e-9, 1e-10)) << name;
  }
}

// A rank that trains its stages with Adam.
struct AdamRank : PipedRank {
  explicit AdamRank(const PipedLayout& where) : PipedRank(where) {}
  void train(int number) {
    optimizer.zero_grad();
    step(number);
    optimizer.step();
  }
  WholeValues values() const {
    WholeValues all;
    for (const auto& stage : own) all.merge(values_in(*stage));
    return all;
  }
  torch::optim::Adam optimizer{pipeline.parameters(), torch::optim::AdamOptions(0.05)};
};

// Values of all stages after the checkpoint, and after the next step.
struct SavedStages {
  WholeValues saved, next;
};

SavedStages save_stages(const std::string& folder, const PipedLayout& layout, bool is_async) {
  SavedStages all;
  std::mutex mutex;
  run_thread_ranks(layout.ranks(), [&](int) {
    AdamRank rank(layout);
    AsyncSave saving;
    rank.train(0);
    rank.train(1);
    const SaveOptions options{.step = 2};
    if (is_async)
      async_save_checkpoint(saving, folder, rank.pipeline, &rank.optimizer, options);
    else
      save_checkpoint(folder, rank.pipeline, &rank.optimizer, options);
    auto saved = rank.values();
    rank.train(2);
    saving.wait();
    auto next = rank.values();
    const std::lock_guard lock(mutex);
    all.saved.merge(saved);
    all.next.merge(next);
  });
  return all;
}

// Loads the checkpoint on one rank into the whole model, trains one step with the micro-batches of the pipelines, and
// returns the values.
WholeValues next_of_whole(const std::string& folder, const WholeValues& saved, bool are_same_bits) {
  auto model = build_alike([] { return piped_model(); });
  torch::optim::Adam optimizer(model->parameters(),
                               torch::optim::AdamOptions(0.3));  // loading replaces these options
  EXPECT_EQ(load_checkpoint(folder, *model, &optimizer).step, 2);
  if (are_same_bits) expect_values(saved, values_in(*model), true);
  optimizer.zero_grad();
  const auto targets = piped_rows(2).flip(0).chunk(4);
  for (size_t part = 0; const auto& rows : piped_rows(2).chunk(4)) {
    const auto& target = targets[part++];
    (piped_loss(model->forward(rows), target).sum() *
     (static_cast<double>(target.size(0)) / static_cast<double>(kBlockRows)))
        .backward();
  }
  optimizer.step();
  return values_in(*model);
}

TEST(PipelineCheckpoint, IsLoadedByAnyNumberOfStagesAndByTheWholeModel) {
  const PipedLayout one{{1, 1, 1, 1}, false}, two{{1, 2, 1, 1}, false}, three{{1, 3, 1, 1}, false},
      four{{1, 4, 1, 1}, false}, interleaved{{1, 2, 1, 1}, false, 3}, sharded{{2, 2, 1, 1}},
      of_parts{{1, 2, 1, 2}, false}, all_axes{{2, 2, 1, 2}}, with_sequence{{2, 2, 2, 1}};
  struct Trial {
    PipedLayout saver;
    std::vector<PipedLayout> loaders;
    bool is_async = false;
  };
  for (const auto& trial : std::vector<Trial>{{two, {one, two, three, four, interleaved, sharded}},
                                              {interleaved, {two, three}, true},
                                              {sharded, {sharded, four, all_axes}, true},
                                              {of_parts, {of_parts, two, all_axes}},
                                              {all_axes, {of_parts, three}},
                                              {with_sequence, {with_sequence, sharded}}}) {
    const auto& saver = trial.saver;
    SCOPED_TRACE("saved by " + saver.text());
    const state::TemporaryFolder folder;
    const auto expected = save_stages(folder.path(), saver, trial.is_async);
    const auto adds_alike = [&](const PipedLayout& layout) {
      return layout.mesh[0] * layout.mesh[2] == saver.mesh[0] * saver.mesh[2];
    };
    const bool has_parts = saver.mesh[3] > 1;
    auto next = next_of_whole(folder.path(), expected.saved, !has_parts);
    if (!has_parts && adds_alike(one)) expect_values(expected.next, next, true);
    for (const auto& layout : trial.loaders) {
      SCOPED_TRACE("loaded by " + layout.text());
      // A part of a tensor can only be compared with the same part. Sums over the tensor axis are compared up to
      // rounding.
      const bool compares = layout.mesh[3] == saver.mesh[3];
      run_thread_ranks(layout.ranks(), [&](int) {
        AdamRank rank(layout);
        EXPECT_EQ(load_checkpoint(folder.path(), rank.pipeline, &rank.optimizer).step, 2);
        if (compares && !has_parts) expect_values(expected.saved, rank.values(), true);
        rank.train(2);
        auto values = rank.values();
        for (const auto& name : {"seen"})
          std::erase_if(values, [&](const auto& value) { return value.first.ends_with(name) && !adds_alike(layout); });
        if (layout.mesh[3] == 1)
          expect_values(has_parts ? next : expected.next, values, compares && adds_alike(layout) && !has_parts);
      });
    }
  }
}

TEST(PipelineCheckpoint, OfTheWholeModelIsLoadedByStagesWhoseNamesAreInIt) {
  const state::TemporaryFolder folder;
  auto model = piped_model();
  save_checkpoint(folder.path(), *model);
  model->push_back("more", PipedBlock());
  const state::TemporaryFolder larger;
  save_checkpoint(larger.path(), *model);
  const auto expected = values_in(*model);
  run_thread_ranks(3, [&](int) {
    PipedRank rank({{1, 3, 1, 1}, false});
    load_checkpoint(folder.path(), rank.pipeline);
    for (const auto& stage : rank.own) expect_values(expected, values_in(*stage), true);
    EXPECT_THAT(text_of_error([&] { load_checkpoint(larger.path(), rank.pipeline); }),
                testing::HasSubstr("more.up.weight: is in the checkpoint, but the model has no such tensor"));
  });
}

TEST(PipelineCheckpoint, IsNotBegunUnlessAllStagesFit) {
  const state::TemporaryFolder folder;
  run_thread_ranks(4, [&](int number) {
    PipedRank rank({{2, 2, 1, 1}});
    const auto refusal = [&](const auto& act) { return text_of_error(act); };
    EXPECT_THAT(refusal([&] { save_checkpoint(folder.path(), rank.groups[0]); }),
                testing::HasSubstr("belongs to a stage of a pipeline, and the stages are saved together"));

    auto optimizer = torch::optim::SGD(rank.pipeline.parameters(), 0.1);
    if (number % 2 == 1) optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>()));
    EXPECT_THAT(
        refusal([&] { save_checkpoint(folder.path(), rank.pipeline, &optimizer); }),
        testing::HasSubstr("rank 1's optimizer has 2 parameter groups, but rank 0's has 1"));

    const torch::nn::Sequential alone(torch::nn::Linear(3, 3));
    Pipeline alike({PipelineStage(alone)}, gpipe_schedule(2, 2), rank.pipe);
    EXPECT_THAT(refusal([&] { save_checkpoint(folder.path(), alike); }),
                testing::HasSubstr("stages 0 and 1 have different tensors that are both called '0.weight'"));

    // One rank's save fails, while the other ranks are about to write.
    SaveOptions options;
    if (number == 3) options.random_states["mine"] = at::zeros({2, 2}, at::kByte);
    EXPECT_THAT(refusal([&] { save_checkpoint(folder.path(), rank.pipeline, nullptr, options); }),
                testing::HasSubstr("rank 3: SaveOptions::random_states['mine']"));
  });
  EXPECT_THAT(state::checkpoint_names(folder.path()), testing::IsEmpty());
}

}  // namespace
}  // namespace fsdp::test
