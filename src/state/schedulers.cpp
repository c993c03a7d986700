#include <fsdp/error.h>
#include <fsdp/schedulers.h>

#include <nlohmann/json.hpp>

namespace fsdp {
namespace {

constexpr char kStepCount[] = "step_count";

// Gives access to LRScheduler::step_count_, which is protected and has no accessor: a derived class may form a pointer
// to this member, and the pointer works for every scheduler.
struct StepCount : torch::optim::LRScheduler {
  static unsigned torch::optim::LRScheduler::* member() { return &StepCount::step_count_; }
};

}  // namespace

std::string state_of(const torch::optim::LRScheduler& scheduler) {
  return nlohmann::ordered_json{{kStepCount, scheduler.*StepCount::member()}}.dump();
}

void load_state(torch::optim::LRScheduler& scheduler, const std::string& state) try {
  scheduler.*StepCount::member() = nlohmann::ordered_json::parse(state).at(kStepCount).get<unsigned>();
} catch (const nlohmann::json::exception& error) {
  throw Error("[fsdp] load_state: expected the state of a scheduler as fsdp::state_of gives it, found '" + state +
              "': " + error.what());
}

}  // namespace fsdp
