#pragma once
/// \file
/// Random bits for elements, as a pure function of the arguments.

#include <cstdint>
#include <span>

namespace fsdp::optim {

/// Fills `bits` with 16 random bits for each of the elements `first`, `first` + 1, ...: Philox-4x32-10 (J. Salmon et
/// al., Parallel random numbers: as easy as 1, 2, 3, 2011) with the key `seed` and a counter of `stream` and element /
/// 8, since each counter gives eight times 16 bits.
void fill_random(std::span<uint16_t> bits, uint64_t seed, uint64_t stream, int64_t first);

}  // namespace fsdp::optim
