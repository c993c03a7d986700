#pragma once
/// \file
/// Formats sizes and tables for people.

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt {

/// Returns a text such as "4.8 GB".
std::string text_of_bytes(uint64_t bytes);

/// Prints a table. All rows have the same number of cells, and the first row has the headings.
void print_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace ckpt
