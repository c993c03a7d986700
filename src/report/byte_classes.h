#pragma once
/// \file
/// The names of byte classes in reports and timelines.

#include <fsdp/group.h>

#include <array>
#include <string_view>
#include <utility>

#include "memory/byte_account.h"

namespace fsdp::report {

/// The classes in memory reports, with their names.
constexpr std::array<std::pair<std::string_view, ByteCount ByteCounts::*>, 7> kCounts{
    {{"rows", &ByteCounts::rows},
     {"whole", &ByteCounts::whole},
     {"gradient", &ByteCounts::gradient},
     {"optimizer", &ByteCounts::optimizer},
     {"activation", &ByteCounts::activation},
     {"host", &ByteCounts::host},
     {"disk", &ByteCounts::disk}}};

/// The names of the classes in memory timelines, indexed by ByteClass.
constexpr std::array<std::string_view, memory::kByteClasses> kClassNames{
    "rows", "whole", "gradient", "optimizer", "checkpoint", "activation", "host", "disk"};

}  // namespace fsdp::report
