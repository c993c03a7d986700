#pragma once
/// \file
/// Decides which nodes run an attempt together. All functions are pure.

#include <optional>
#include <string>
#include <vector>

namespace fsdprun {

/// The smallest and the largest number of nodes that an attempt may have.
struct NodeRange {
  int least = 1, most = 1;

  bool is_open() const { return least < most; }
  bool operator==(const NodeRange&) const = default;
};

/// A node that takes part in an attempt.
struct Member {
  /// Number of its launcher, which stays the same until the job ends. Launchers are numbered in the order of arrival or
  /// by --node-rank.
  int id = 0;
  int local_ranks = 0;

  bool operator==(const Member&) const = default;
};

/// Describes an attempt. Node 0 sends it to all launchers before the attempt begins.
struct Round {
  /// Number of the attempt, from 0; -1 before the first attempt.
  int attempt = -1;
  /// Number of failed attempts before this one, which --max-restarts limits.
  int failures = 0;
  /// The members, in the order of their node numbers.
  std::vector<Member> members;

  /// Returns the node number that the launcher `id` has in this attempt, or nullopt if it does not take part.
  std::optional<int> node_of(int id) const;
  /// Returns the first rank of `node`, which is the number of ranks of the nodes before it.
  int first_rank(int node) const;
  int world_size() const { return first_rank(static_cast<int>(members.size())); }

  std::string encode() const;
  static Round decode(const std::string& text);
};

/// The reason why an attempt ended early. All launchers use the first reason that one of them tells.
struct AttemptEnd {
  /// True after a failure; false if the attempt ended because more nodes came.
  bool is_failure = true;
  /// The reason. It begins with the node.
  std::string text;

  std::string encode() const { return (is_failure ? "failure " : "joining ") + text; }
  static AttemptEnd decode(const std::string& text);
};

/// A launcher that could take part in the next attempt.
struct Candidate {
  Member member;
  /// True if no rank of the last attempt still runs there.
  bool is_ready = true;
};

/// Returns the members of the next attempt: of the launchers that are ready, those with the lowest numbers. Returns
/// nullopt if node 0 has to wait: for `range.least` launchers, for more launchers until the last call is over, or for
/// launchers whose ranks of the last attempt still run.
std::optional<std::vector<Member>> choose_members(const std::vector<Candidate>& candidates, NodeRange range,
                                                  bool last_call_is_over);

}  // namespace fsdprun
