#pragma once
/// \file
/// Parses the values of --redirects, --tee and --local-ranks-filter.

#include <map>
#include <optional>
#include <set>
#include <string>

namespace fsdprun {

/// The standard streams of local ranks that a flag selects.
class StreamChoice {
 public:
  /// Parses "0" (none), "1" (stdout), "2" (stderr) or "3" (both) for all local ranks, or a list such as "0:3,2:1" for
  /// single local ranks. Returns nullopt for other text.
  static std::optional<StreamChoice> parse(const std::string& text);

  bool has_stdout(int local_rank) const { return (streams(local_rank) & 1) != 0; }
  bool has_stderr(int local_rank) const { return (streams(local_rank) & 2) != 0; }
  bool is_empty() const;

 private:
  int streams(int local_rank) const;

  int everywhere_ = 0;
  std::map<int, int> by_local_rank_;
};

/// Parses a list such as "0,2,3". Returns nullopt if `text` is not such a list.
std::optional<std::set<int>> parse_local_ranks(const std::string& text);

}  // namespace fsdprun
