#include "stream_choice.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "numbers.h"

namespace fsdprun {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int> parse_streams(std::string_view text) { return parse_number(text, 0, 3); }

}  // namespace

std::optional<StreamChoice> StreamChoice::parse(const std::string& text) {
  StreamChoice choice;
  if (const auto streams = parse_streams(text)) {
    choice.everywhere_ = *streams;
    return choice;
  }
  for (const std::string_view part : split(text, ',')) {
    const std::vector<std::string_view> sides = split(part, ':');
    if (sides.size() != 2) return std::nullopt;
    const auto local_rank = parse_number(sides[0], 0);
    const auto streams = parse_streams(sides[1]);
    if (!local_rank || !streams) return std::nullopt;
    choice.by_local_rank_[*local_rank] = *streams;
  }
  return choice;
}

bool StreamChoice::is_empty() const {
  return everywhere_ == 0 && std::ranges::all_of(by_local_rank_, [](const auto& entry) { return entry.second == 0; });
}

int StreamChoice::streams(int local_rank) const {
  const auto found = by_local_rank_.find(local_rank);
  return found == by_local_rank_.end() ? everywhere_ : found->second;
}

std::optional<std::set<int>> parse_local_ranks(const std::string& text) {
  std::set<int> ranks;
  for (const std::string_view part : split(text, ',')) {
    const auto rank = parse_number(part, 0);
    if (!rank) return std::nullopt;
    ranks.insert(*rank);
  }
  return ranks;
}

}  // namespace fsdprun
