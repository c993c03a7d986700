#pragma once
/// \file
/// The text that the program prints. Its lines begin like those of the program in PyTorch's tutorials.

#include <cstdint>
#include <string>

#include "training.h"

namespace mnist {

/// Returns a line such as "Train Epoch: 1  Loss: 0.123456".
std::string epoch_text(int64_t epoch, double loss);
/// Returns a line such as "Test set: Average loss: 0.0456, Accuracy: 9876/10000 (98.76%)".
std::string test_text(const TestResult& result);
/// Returns a line with the peak bytes of each kind of memory, each on the rank that held most of it. Collective.
std::string peak_memory_text(const Model& model);

}  // namespace mnist
