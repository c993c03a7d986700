#pragma once
/// \file
/// The trained model as a file.

#include <string>

#include "training.h"

namespace mnist {

/// Writes the whole parameters and rank 0's buffers as a dictionary from names to tensors, which Python's `torch.load`
/// and LibTorch's `torch::pickle_load` read. Every rank takes part, tensor by tensor; rank 0 writes. Collective. Throws
/// std::runtime_error on rank 0 if the file cannot be written; there is none then that was not there before.
void save_model(const Model& model, const std::string& path);

}  // namespace mnist
