// Tests of the place at which a training resumes from a checkpoint.

#include "train/training_place.h"

#include <fsdp/error.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace fsdp::train {
namespace {

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
