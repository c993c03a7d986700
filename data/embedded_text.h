#pragma once
/// \file
/// Texts that are part of the program, so that a demonstration needs no download.

#include <string_view>

namespace fsdp {

/// The plays of Shakespeare known as Tiny Shakespeare: 1,115,394 ASCII characters, 65 different ones. Public domain.
std::string_view tiny_shakespeare();

}  // namespace fsdp
