#pragma once
/// \file
/// Parses the command line.

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/failure/verdict.h"
#include "round.h"
#include "stream_choice.h"

namespace fsdprun {

enum class Prefix { kSeveralRanks, kAlways, kNever };

/// The address at which the launchers of all nodes meet. One of them hosts the store there.
struct MeetingPlace {
  std::string host;
  /// Port of the store; 0 means any free port, which is allowed only with one node.
  uint16_t port = 0;
  /// True if nodes are numbered in the order in which they arrive: the first launcher that listens at an address of its
  /// own host becomes node 0. False if --node-rank numbers the nodes.
  bool numbers_nodes_by_arrival = false;

  bool operator==(const MeetingPlace&) const = default;
};

struct Flags {
  NodeRange nodes;
  int node_rank = 0;
  /// Number of ranks on this node: a number, "auto", "gpu" or "cpu".
  std::string processes_per_node = "1";
  MeetingPlace meeting_place;
  std::string run_id = "none";
  std::string role = "default";
  int max_restarts = 0;
  /// Time from the first failure of a rank to the SIGTERM for the other ranks.
  std::chrono::seconds peer_grace = fsdp::kLongestDiagnosis;
  /// Time for which the launcher of another node may be silent.
  std::chrono::seconds heartbeat_timeout{30};
  /// Time for which a node waits until there are enough nodes, and time for which it then waits for more nodes.
  std::chrono::seconds join_timeout{600}, last_call_timeout{30};
  /// Time from SIGTERM to SIGKILL.
  std::chrono::seconds shutdown_timeout{10};
  Prefix prefix = Prefix::kSeveralRanks;
  /// Folder for the log files. If it is empty and a flag asks for log files, the launcher makes a new folder among the
  /// temporary files.
  std::string log_dir;
  StreamChoice redirects, tee;
  /// The local ranks whose output is shown; all of them if it is not set.
  std::optional<std::set<int>> shown_local_ranks;
  /// True if the launcher compares the hosts and measures the connections between them, instead of starting a program.
  bool doctor = false;
  /// The program and its arguments. For the doctor it is this program, which then runs as a rank that measures.
  std::vector<std::string> command;
};

/// The first argument with which fsdprun starts itself as a rank of the doctor.
constexpr const char* kDoctorRank = "--doctor-rank";

/// Parses `arguments`, which do not include the launcher's own name. For --help it throws Exit with status 0 and the
/// help text. For wrong flags it throws Exit with a sentence that says what is wrong.
Flags parse_flags(std::vector<std::string> arguments);

}  // namespace fsdprun
