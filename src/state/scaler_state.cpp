#include "state/scaler_state.h"

#include <nlohmann/json.hpp>

#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

// Calls `visit(name, field)` for all fields of a GradScalerState, in the order in which checkpoints store them.
void scaler_fields(auto& state, const auto& visit) {
  visit("_growth_tracker", state.growth_tracker), visit("backoff_factor", state.backoff_factor);
  visit("growth_factor", state.growth_factor), visit("growth_interval", state.growth_interval);
  visit("scale", state.scale);
}

}  // namespace

std::string state_of(const GradScaler& scaler) {
  nlohmann::ordered_json json;
  const auto state = scaler.state();
  scaler_fields(state, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump();
}

void restore(GradScaler& scaler, const std::string& text) try {
  GradScalerState state;
  const auto json = nlohmann::ordered_json::parse(text);
  scaler_fields(state, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  scaler.load(state);
} catch (const nlohmann::json::exception& error) {
  throw FormatError("cannot read the state of a GradScaler from '" + text + "': " + error.what());
}

}  // namespace fsdp::state
