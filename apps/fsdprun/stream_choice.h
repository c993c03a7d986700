#pragma once
/// \file
/// The values of --redirects, --tee and --local-ranks-filter.

#include <map>
#include <optional>
#include <set>
#include <string>

namespace fsdprun {

/// Which standard streams of which local ranks a flag means.
class StreamChoice {
 public:
  /// "0" none, "1" stdout, "2" stderr, "3" both; or for single local ranks "0:3,2:1". nullopt if
  /// `text` is neither.
  static std::optional<StreamChoice> parse(const std::string& text);

  bool has_stdout(int local_rank) const { return (streams(local_rank) & 1) != 0; }
  bool has_stderr(int local_rank) const { return (streams(local_rank) & 2) != 0; }
  bool is_empty() const;

 private:
  int streams(int local_rank) const;

  int everywhere_ = 0;
  std::map<int, int> by_local_rank_;
};

/// "0,2,3" as a set. nullopt if `text` is not such a list.
std::optional<std::set<int>> parse_local_ranks(const std::string& text);

}  // namespace fsdprun
