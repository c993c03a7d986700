#include "attendance.h"

namespace fsdprun {

std::string silent(int node, std::chrono::seconds timeout) {
  return "node " + std::to_string(node) + ": its launcher has been silent for " + std::to_string(timeout.count()) +
         " s; the launcher is stopped or cannot be reached";
}

void Attendance::note(const std::vector<Sighting>& launchers) {
  launchers_.resize(launchers.size(), {.sighting = {}, .silence = Patience(timeout_)});
  for (size_t id = 0; id < launchers.size(); ++id) {
    Launcher& launcher = launchers_[id];
    if (launcher.sighting.beats != launchers[id].beats) launcher.silence.begin_anew();
    launcher.sighting = launchers[id];
    launcher.is_silent = launcher.silence.is_over();
  }
}

std::vector<Candidate> Attendance::candidates(const Round& last) const {
  std::vector<Candidate> there;
  for (size_t id = 0; id < launchers_.size(); ++id) {
    const Launcher& launcher = launchers_[id];
    if (launcher.sighting.local_ranks == 0 || launcher.sighting.has_left || launcher.is_silent) continue;
    const Member member{.id = static_cast<int>(id), .local_ranks = launcher.sighting.local_ranks};
    there.push_back({.member = member, .is_ready = launcher.sighting.is_ready || !last.node_of(member.id)});
  }
  return there;
}

std::optional<std::string> Attendance::loss_in(const Round& round) const {
  for (size_t node = 0; node < round.members.size(); ++node) {
    const auto id = static_cast<size_t>(round.members[node].id);
    if (launchers_.at(id).is_silent) return silent(static_cast<int>(node), timeout_);
    if (launchers_.at(id).sighting.has_left) return "node " + std::to_string(node) + ": its launcher has ended";
  }
  return std::nullopt;
}

}  // namespace fsdprun
