#pragma once
/// \file
/// Saves the trained model to a file.

#include <string>

#include "training.h"

namespace mnist {

/// Writes the whole parameters and rank 0's buffers as a dictionary from names to tensors. Python's `torch.load` and
/// LibTorch's `torch::pickle_load` read the file. The ranks gather one tensor after another, and rank 0 writes them.
/// Collective. Throws std::runtime_error on rank 0 if the file cannot be written, and then leaves no new file.
void save_model(const Model& model, const std::string& path);

}  // namespace mnist
