#pragma once
/// \file
/// How long ranks take to find out who was lost.

#include <chrono>

namespace fsdp {

/// What the survivors of a rank may take to agree who was lost, and to say so: two roll calls over a network and the
/// farewell of the rank that hosts the store. Whoever ends survivors waits for so long first.
constexpr std::chrono::seconds kLongestDiagnosis{15};

}  // namespace fsdp
