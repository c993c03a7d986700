#pragma once
/// \file
/// Classes of bytes by name.

#include <fsdp/group.h>

#include <array>
#include <string_view>
#include <utility>

#include "memory/byte_account.h"

namespace fsdp::report {

/// By the number of the class.
constexpr std::array<std::pair<std::string_view, ByteCount ByteCounts::*>, memory::kByteClasses> kCounts{
    {{"rows", &ByteCounts::rows},
     {"whole", &ByteCounts::whole},
     {"gradient", &ByteCounts::gradient},
     {"optimizer", &ByteCounts::optimizer},
     {"activation", &ByteCounts::activation},
     {"host", &ByteCounts::host},
     {"disk", &ByteCounts::disk}}};

}  // namespace fsdp::report
