#pragma once
/// \file
/// What a GradScaler goes on from, as files have it: JSON with the names of torch.amp.GradScaler's state_dict.

#include <fsdp/grad_scaler.h>

#include <string>

namespace fsdp::state {

/// Its name among what has a state.
constexpr char kScaler[] = "scaler";

std::string state_of(const GradScaler& scaler);
/// Throws FormatError for another text.
void restore(GradScaler& scaler, const std::string& state);

}  // namespace fsdp::state
