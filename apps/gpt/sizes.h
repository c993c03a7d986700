#pragma once
/// \file
/// The sizes of the models that --size names.

#include <array>
#include <string_view>

#include "arguments.h"

namespace gpt {

struct Size {
  std::string_view name;
  Architecture architecture;
  int64_t dim, layers, heads, seq;
  double lr;
};

// The first size is the default. gpt2 has the sizes that Radford et al. 2019 give for 117 million parameters. In fact
// these sizes have 124 million, and 163 million with a head that is not tied to the embedding, as here.
inline constexpr std::array<Size, 4> kSizes = {{
    {"tiny", Architecture::kGpt, 128, 4, 4, 64, 3e-3},
    {"small", Architecture::kGpt, 256, 6, 8, 128, 1e-3},
    {"gpt2", Architecture::kGpt, 768, 12, 12, 1024, 6e-4},
    {"llama", Architecture::kLlama, 256, 6, 8, 128, 1e-3},
}};

}  // namespace gpt
