#pragma once
/// \file
/// The state of a GradScaler as checkpoints store it: a JSON object with the keys of torch.amp.GradScaler's state_dict.

#include <fsdp/grad_scaler.h>

#include <string>

namespace fsdp::state {

/// The GradScaler's name in Manifest::states.
constexpr char kScaler[] = "scaler";

/// Returns the scaler's state as JSON.
std::string state_of(const GradScaler& scaler);
/// Gives the scaler a state that state_of returned. Throws FormatError for other text.
void restore(GradScaler& scaler, const std::string& state);

}  // namespace fsdp::state
