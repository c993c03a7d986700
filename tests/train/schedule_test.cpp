// Tests of the place at which a training resumes from a checkpoint, and of its learning rate there.

#include "train/schedule.h"

#include <fsdp/error.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "train/training_place.h"

namespace fsdp::train {
namespace {

TEST(CosineSchedule, RisesInEqualStepsAndFallsAlongHalfACosineToTheFloor) {
  constexpr CosineSchedule kSchedule{.highest = 0.4, .warmup = 4, .steps = 12, .floor = 0.1};
  const double rates[] = {0.1, 0.2, 0.3, 0.4, 0.4};
  for (int64_t step = 0; step < 5; ++step) EXPECT_DOUBLE_EQ(cosine_learning_rate(kSchedule, step), rates[step]);
  for (int64_t step = 4; step < 12; ++step)
    EXPECT_GT(cosine_learning_rate(kSchedule, step), cosine_learning_rate(kSchedule, step + 1));
  EXPECT_NEAR(cosine_learning_rate(kSchedule, 8), (0.4 + 0.04) / 2, 1e-15);
  for (const int64_t step : {12, 1000}) EXPECT_NEAR(cosine_learning_rate(kSchedule, step), 0.04, 1e-15);
  // The schedules have no warm-up, or consist of it.
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 0, .steps = 5}, 0), 1);
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 5, .steps = 5}, 4), 1);
  EXPECT_DOUBLE_EQ(cosine_learning_rate({.highest = 1, .warmup = 5, .steps = 2}, 1), 0.4);
}

LoadedCheckpoint saved_by(int64_t ranks, int64_t step, const std::map<std::string, std::string>& states) {
  LoadedCheckpoint loaded;
  loaded.step = step;
  loaded.world_size = ranks;
  loaded.states = states;
  return loaded;
}

// Returns a checkpoint that `ranks` ranks saved. `others` ranks may have rewritten it since.
LoadedCheckpoint saved_at(const TrainingPlace& place, int ranks, int others = 0) {
  return saved_by(others > 0 ? others : ranks, place.step, {{"trainer", state_of(place, ranks)}});
}

TEST(TrainingPlace, IsThatOfTheSavedTrainingWithAsManyRanksOrOfTheStepsWhereThereWasNoTrainer) {
  const TrainingPlace place{.epoch = 2, .batches = 7, .step = 31};
  EXPECT_EQ(place_in(saved_at(place, 3), 3, 2).place, place) << "also after an odd batch at an epoch's end";
  EXPECT_EQ(place_in(saved_at(place, 3), 3, 2).may_lack, 0);
  EXPECT_EQ(place_in(saved_by(1, 5, {}), 1, 2).place, (TrainingPlace{.epoch = 0, .batches = 10, .step = 5}));
}

TEST(TrainingPlace, WithOtherRanksIsAsFarInTheEpochToTheBatchesOfAllOfThem) {
  const TrainingPlace place{.epoch = 1, .batches = 9, .step = 20};
  for (const auto& [now, batches] : std::map<int, int64_t>{{1, 18}, {2, 9}, {3, 6}, {4, 4}, {18, 1}, {19, 0}})
    for (const int rewritten_for : {2, now}) {
      const auto resumed = place_in(saved_at(place, 2, rewritten_for), now, /*accumulate=*/4);
      EXPECT_EQ(resumed.place, (TrainingPlace{.epoch = 1, .batches = batches, .step = 20})) << now << " ranks";
    }
  EXPECT_EQ(place_in(saved_by(2, 20, {{"trainer", R"({"epoch": 1, "batches": 9})"}}), 1, 1).place.batches, 18)
      << "as earlier releases wrote it";
}

TEST(TrainingPlace, OfAnotherTextIsAnError) {
  for (const char* text :
       {"", "[]", R"({"epoch": 1})", R"({"epoch": "x", "batches": 1})", R"({"epoch": 1, "batches": 1, "ranks": "x"})"})
    EXPECT_THROW(place_in(saved_by(1, 5, {{"trainer", text}}), 1, 1), Error) << text;
}

}  // namespace
}  // namespace fsdp::train
