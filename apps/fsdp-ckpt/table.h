#pragma once
/// \file
/// What people read: sizes, tables.

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt {

/// "4.8 GB"
std::string text_of_bytes(uint64_t bytes);

/// Prints rows of equally many cells below each other; the first row is the heads.
void print_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace ckpt
