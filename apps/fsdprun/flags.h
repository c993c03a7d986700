#pragma once
/// \file
/// The command line.

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

/// Where the launchers of the nodes meet; one of them hosts the store there.
struct MeetingPlace {
  std::string host;
  /// 0: any free port; only with one node.
  uint16_t port = 0;
  /// Whoever listens first at an address of its own host becomes node 0, the others are numbered as
  /// they come. If not, --node-rank says.
  bool numbers_nodes_by_arrival = false;

  bool operator==(const MeetingPlace&) const = default;
};

struct Flags {
  NodeRange nodes;
  int node_rank = 0;
  /// A number, or "auto", "gpu" or "cpu".
  std::string processes_per_node = "1";
  MeetingPlace meeting_place;
  std::string run_id = "none";
  std::string role = "default";
  int max_restarts = 0;
  /// From the first failure to SIGTERM for the others.
  std::chrono::seconds peer_grace = fsdp::kLongestDiagnosis;
  /// How long another node's launcher may be silent.
  std::chrono::seconds heartbeat_timeout{30};
  /// How long nodes wait for others: until there are enough, and then for more.
  std::chrono::seconds join_timeout{600}, last_call_timeout{30};
  /// From SIGTERM to SIGKILL.
  std::chrono::seconds shutdown_timeout{10};
  Prefix prefix = Prefix::kSeveralRanks;
  /// Empty: a new folder under the folder for temporary files, if a flag asks for files.
  std::string log_dir;
  StreamChoice redirects, tee;
  /// Unset: all.
  std::optional<std::set<int>> shown_local_ranks;
  /// Compare the hosts and measure what is between them, instead of starting a program.
  bool doctor = false;
  /// The program and its arguments; for the doctor this program, as a rank that measures.
  std::vector<std::string> command;
};

/// The first argument of fsdprun itself as a rank that measures.
constexpr const char* kDoctorRank = "--doctor-rank";

/// `arguments` without the launcher's own name. Throws Exit: with status 0 and the help text for
/// --help, else with a sentence on what is wrong.
Flags parse_flags(std::vector<std::string> arguments);

}  // namespace fsdprun
