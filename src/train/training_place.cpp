#include "train/training_place.h"

#include <fsdp/error.h>

#include <nlohmann/json.hpp>

namespace fsdp::train {

std::string state_of(const TrainingPlace& place, int world_size) {
  return nlohmann::json{{"epoch", place.epoch}, {"batches", place.batches}, {"ranks", world_size}}.dump();
}

ResumedPlace place_in(const LoadedCheckpoint& loaded, int world_size, int64_t accumulate) {
  const auto found = loaded.states.find("trainer");
  if (found == loaded.states.end()) return {{.epoch = 0, .batches = loaded.step * accumulate, .step = loaded.step}};
  try {
    const auto state = nlohmann::json::parse(found->second);
    const int64_t now = world_size, then = state.value("ranks", loaded.world_size);  // old checkpoints lack "ranks"
    const int64_t batches = state.at("batches").get<int64_t>();
    return {.place = {.epoch = state.at("epoch").get<int64_t>(), .batches = batches * then / now, .step = loaded.step},
            .may_lack = then == now ? 0 : 1 + (then - 1) / now};
  } catch (const nlohmann::json::exception&) {
    throw Error("[fsdp] Trainer::resume: the state 'trainer' in the checkpoint " + loaded.path +
                " was not written by a Trainer. Load the checkpoint with fsdp::load_checkpoint. The state is: " +
                found->second);
  }
}

}  // namespace fsdp::train
