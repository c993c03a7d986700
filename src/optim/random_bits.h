#pragma once
/// \file
/// Random bits that depend only on a seed, a stream and an element's index.

#include <cstdint>
#include <span>

namespace fsdp::optim {

/// Fills `bits` with 16 random bits for each of the elements `first`, `first` + 1, ... The generator is Philox-4x32-10
/// (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011). Its key is `seed`, and its counter consists
/// of `stream` and element / 8, because one counter gives the bits of eight elements.
void fill_random(std::span<uint16_t> bits, uint64_t seed, uint64_t stream, int64_t first);

}  // namespace fsdp::optim
