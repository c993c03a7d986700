#pragma once
/// \file
/// Which nodes run an attempt together. Pure.

#include <optional>
#include <string>
#include <vector>

namespace fsdprun {

/// How many nodes an attempt may have.
struct NodeRange {
  int least = 1, most = 1;

  bool is_open() const { return least < most; }
  bool operator==(const NodeRange&) const = default;
};

/// A node of an attempt.
struct Member {
  /// Its launcher's number for as long as the job lasts: in the order of arrival, or as --node-rank says.
  int id = 0;
  int local_ranks = 0;

  bool operator==(const Member&) const = default;
};

/// What node 0 tells all launchers of an attempt before it begins.
struct Round {
  /// From 0; -1: there was none yet.
  int attempt = -1;
  /// How many attempts before it failed: what --max-restarts bounds.
  int failures = 0;
  /// In the order of node numbers.
  std::vector<Member> members;

  /// The number in this attempt of the node whose launcher is `id`.
  std::optional<int> node_of(int id) const;
  /// The ranks of the nodes before `node`.
  int first_rank(int node) const;
  int world_size() const { return first_rank(static_cast<int>(members.size())); }

  std::string encode() const;
  static Round decode(const std::string& text);
};

/// Why an attempt ended early. The first reason that a launcher tells counts for all of them.
struct AttemptEnd {
  /// Else other nodes came, which is no failure.
  bool is_failure = true;
  /// Begins with the node.
  std::string text;

  std::string encode() const { return (is_failure ? "failure " : "joining ") + text; }
  static AttemptEnd decode(const std::string& text);
};

/// A launcher that is there.
struct Candidate {
  Member member;
  /// No rank of the last attempt runs there any more.
  bool is_ready = true;
};

/// The members of the next attempt, those that came first; nullopt: more have to come, or may still. Once `range.least`
/// are ready, others may come until the last call is over; those that have yet to end their ranks are waited for.
std::optional<std::vector<Member>> choose_members(const std::vector<Candidate>& candidates, NodeRange range,
                                                  bool last_call_is_over);

}  // namespace fsdprun
