#include "train/training_place.h"

#include <fsdp/error.h>

#include <nlohmann/json.hpp>

namespace fsdp::train {
namespace {

// Of an epoch's batches those that are whole steps of all ranks.
int64_t batches_of(int64_t batches, int64_t then, int64_t now, int64_t accumulate) {
  return then == now ? batches : batches * then / now / accumulate * accumulate;
}

}  // namespace

std::string state_of(const TrainingPlace& place) {
  return nlohmann::json{{"epoch", place.epoch}, {"batches", place.batches}}.dump();
}

TrainingPlace place_in(const LoadedCheckpoint& loaded, int world_size, int64_t accumulate) {
  const auto found = loaded.states.find("trainer");
  if (found == loaded.states.end()) return {.epoch = 0, .batches = loaded.step * accumulate, .step = loaded.step};
  try {
    const auto state = nlohmann::json::parse(found->second);
    const int64_t batches = state.at("batches").get<int64_t>();
    return {.epoch = state.at("epoch").get<int64_t>(),
            .batches = batches_of(batches, loaded.world_size, world_size, accumulate),
            .step = loaded.step};
  } catch (const nlohmann::json::exception&) {
    throw Error("[fsdp] Trainer::resume: the state 'trainer' of " + loaded.path +
                " is no place of a training: " + found->second + ". Load it with fsdp::load_checkpoint.");
  }
}

}  // namespace fsdp::train
