#pragma once
/// \file
/// Random bits of elements, which depend on nothing but what they are asked for.

#include <cstdint>
#include <span>

namespace fsdp::optim {

/// Random 16 bits for each of the elements `first`, `first` + 1, ...: Philox-4x32-10 (J. Salmon et al., Parallel random
/// numbers: as easy as 1, 2, 3, 2011) with `seed` as its key, and a counter of `stream` and an eighth of the element's
/// number, since it gives eight times 16 bits.
void fill_random(std::span<uint16_t> bits, uint64_t seed, uint64_t stream, int64_t first);

}  // namespace fsdp::optim
