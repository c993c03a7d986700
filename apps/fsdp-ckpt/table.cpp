#include "table.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <iterator>

namespace ckpt {

std::string text_of_bytes(uint64_t bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  auto count = static_cast<double>(bytes);
  for (; count >= 999.5 && unit + 1 < std::size(units); ++unit) count /= 1000;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 || count >= 99.95 ? "%.0f %s" : "%.1f %s", count, units[unit]);
  return text;
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i)
      std::cout << "  " << std::left << std::setw(static_cast<int>(widths[i])) << row[i];
    std::cout << "  " << row.back() << '\n';
  }
}

}  // namespace ckpt
