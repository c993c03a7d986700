#pragma once
/// \file
/// What the program prints; lines begin as those of the tutorials' program.

#include <cstdint>
#include <string>

#include "training.h"

namespace mnist {

/// "Train Epoch: 1  Loss: 0.123456"
std::string epoch_text(int64_t epoch, double loss);
/// "Test set: Average loss: 0.0456, Accuracy: 9876/10000 (98.76%)"
std::string test_text(const TestResult& result);
/// Bytes of each class at their peaks, on the rank that held most. Collective.
std::string peak_memory_text(const Model& model);

}  // namespace mnist
