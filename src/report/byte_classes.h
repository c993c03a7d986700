#pragma once
/// \file
/// Classes of bytes by name.

#include <fsdp/group.h>

#include <array>
#include <string_view>
#include <utility>

#include "memory/byte_account.h"

namespace fsdp::report {

/// As reports have them.
constexpr std::array<std::pair<std::string_view, ByteCount ByteCounts::*>, 7> kCounts{
    {{"rows", &ByteCounts::rows},
     {"whole", &ByteCounts::whole},
     {"gradient", &ByteCounts::gradient},
     {"optimizer", &ByteCounts::optimizer},
     {"activation", &ByteCounts::activation},
     {"host", &ByteCounts::host},
     {"disk", &ByteCounts::disk}}};

/// As timelines have them, by number.
constexpr std::array<std::string_view, memory::kByteClasses> kClassNames{
    "rows", "whole", "gradient", "optimizer", "checkpoint", "activation", "host", "disk"};

}  // namespace fsdp::report
