// Where a training goes on that a checkpoint has.

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

LoadedCheckpoint saved_at(const TrainingPlace& place, int64_t ranks) {
  return saved_by(ranks, place.step, {{"trainer", state_of(place)}});
}

TEST(TrainingPlace, IsThatOfTheSavedTrainingWithAsManyRanks) {
  const TrainingPlace place{.epoch = 2, .batches = 7, .step = 31};
  EXPECT_EQ(place_in(saved_at(place, 3), 3, 2), place) << "also after an odd batch at an epoch's end";
}

TEST(TrainingPlace, WithOtherRanksIsAsFarInTheEpochToTheStep) {
  const TrainingPlace place{.epoch = 1, .batches = 9, .step = 20};
  EXPECT_EQ(place_in(saved_at(place, 2), 1, 1).batches, 18);
  EXPECT_EQ(place_in(saved_at(place, 2), 4, 1).batches, 4) << "half a step is done again";
  EXPECT_EQ(place_in(saved_at(place, 2), 1, 4).batches, 16);
  EXPECT_EQ(place_in(saved_at(place, 2), 1, 4).epoch, 1);
  EXPECT_EQ(place_in(saved_at(place, 2), 1, 4).step, 20);
}

TEST(TrainingPlace, OfACheckpointOfNoTrainerIsThatOfItsSteps) {
  EXPECT_EQ(place_in(saved_by(1, 5, {}), 1, 2), (TrainingPlace{.epoch = 0, .batches = 10, .step = 5}));
}

TEST(TrainingPlace, OfAnotherTextIsAnError) {
  for (const char* text : {"", "[]", R"({"epoch": 1})", R"({"epoch": "x", "batches": 1})"})
    EXPECT_THROW(place_in(saved_by(1, 5, {{"trainer", text}}), 1, 1), Error) << text;
}

}  // namespace
}  // namespace fsdp::train
