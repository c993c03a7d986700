#include "nodes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "exit.h"

namespace fsdprun {
namespace {

constexpr std::chrono::seconds kLeaveTimeout{30};

int count_ready(const std::vector<Candidate>& there) {
  return static_cast<int>(std::ranges::count_if(there, &Candidate::is_ready));
}

std::string nodes_text(int count) { return std::to_string(count) + (count == 1 ? " node" : " nodes"); }

}  // namespace

Nodes::Nodes(const Flags& flags, int local_ranks, Console& console, SignalQueue& signals)
    : range_(flags.nodes),
      local_ranks_(local_ranks),
      are_numbered_by_arrival_(flags.meeting_place.numbers_nodes_by_arrival),
      join_timeout_(flags.join_timeout),
      last_call_timeout_(flags.last_call_timeout),
      console_(console),
      meeting_point_(flags, signals),
      silence_of_store_(flags.heartbeat_timeout),
      attendance_(flags.heartbeat_timeout) {}

void Nodes::meet(SignalQueue& signals) {
  const int id = meeting_point_.id();
  if (is_alone()) {
    begin({.attempt = round_.attempt + 1, .failures = failures_, .members = {{.id = 0, .local_ranks = local_ranks_}}});
  } else {
    if (round_.attempt < 0) {
      meeting_point_.tell(meeting_point_.key("ranks", id), std::to_string(local_ranks_), signals);
    } else {
      meeting_point_.tell(attempt_key("ended") + "/" + std::to_string(id), "", signals);
    }
    begin(meeting_point_.is_host() ? gather(signals) : wait_for_round(signals));
  }
}

void Nodes::begin(Round round) {
  round_ = std::move(round);
  node_ = round_.node_of(meeting_point_.id()).value();
  failures_ = round_.failures;
  silence_of_store_.begin_anew();
}

/// Returns a function that looks at the store. The function increments this node's heartbeat counter; on node 0 it also
/// reads the state of all launchers. It reads whether launchers have left before it reads their messages, so it does
/// not miss messages that a launcher sent before it left.
auto Nodes::look() const {
  const int listed = are_numbered_by_arrival_ ? 0 : range_.most;
  return
      [attempt = round_.attempt, id = meeting_point_.id(), listed, all = meeting_point_.key("")](c10d::Store& store) {
        const auto key = [&](const std::string& name, int number) { return all + name + "/" + std::to_string(number); };
        store.add(key("beat", id), 1);
        News news{.attempt = attempt};
        const int64_t launchers = id != 0 ? 0 : listed != 0 ? listed : 1 + store.add(all + "arrivals", 0);
        for (int other = 0; other < launchers; ++other) {
          const auto ranks = read(store, key("ranks", other));
          news.launchers.push_back({.local_ranks = ranks ? std::stoi(*ranks) : 0,
                                    .beats = store.add(key("beat", other), 0),
                                    .is_ready = store.check({key("ended", attempt) + "/" + std::to_string(other)}),
                                    .has_left = store.check({key("left", other)})});
        }
        news.end = read(store, key("end", attempt));
        news.done = store.add(key("done", attempt), 0);
        news.round = read(store, all + "round");
        news.over = read(store, all + "over");
        return news;
      };
}

/// Waits in node 0 until enough nodes are there, and announces the next attempt.
Round Nodes::gather(SignalQueue& signals) {
  const auto give_up = Clock::now() + join_timeout_;
  std::optional<Clock::time_point> end_of_last_call;
  for (;; pause(signals)) {
    attendance_.note(meeting_point_.answer(signals, look()).launchers);
    const auto lost = are_numbered_by_arrival_ ? std::nullopt : attendance_.loss_in(round_);
    if (lost) throw Exit(kFailure, *lost + "; without that node the other nodes do not start again");
    const auto there = attendance_.candidates(round_);
    const auto now = Clock::now();
    if (count_ready(there) < range_.least) {
      end_of_last_call.reset();
      if (now > give_up) throw Exit(kFailure, too_few(there));
    } else if (!end_of_last_call) {
      end_of_last_call = now + last_call_timeout_;
    }
    const auto members = choose_members(there, range_, end_of_last_call && now >= *end_of_last_call);
    if (!members) continue;
    const Round round{.attempt = round_.attempt + 1, .failures = failures_, .members = *members};
    meeting_point_.tell(meeting_point_.key("round"), round.encode(), signals);
    return round;
  }
}

std::string Nodes::too_few(const std::vector<Candidate>& there) const {
  std::string found;
  for (const Candidate& candidate : there) {
    found += (found.empty() ? "" : ", ") + std::to_string(candidate.member.id);
  }
  return "expected " + std::string(range_.is_open() ? "at least " : "") + nodes_text(range_.least) + " within " +
         std::to_string(join_timeout_.count()) + " s (join_timeout of --rdzv-conf), found " +
         std::to_string(there.size()) + (are_numbered_by_arrival_ ? "" : " (--node-rank " + found + ")") +
         ". Start the other nodes with the address of this job, or ask for fewer nodes with --nnodes";
}

/// Waits in the other nodes until node 0 announces an attempt in which this node takes part.
Round Nodes::wait_for_round(SignalQueue& signals) {
  for (bool has_said_so = false;; pause(signals)) {
    const News news = meeting_point_.answer(signals, look());
    if (news.over) {
      if (news.over->empty()) throw Exit(0, "the job is over; this node was not needed");
      throw Exit(kFailure, "node 0 has ended the job: " + *news.over);
    }
    if (!news.round) continue;
    const Round next = Round::decode(*news.round);
    if (next.attempt <= round_.attempt) continue;
    if (next.node_of(meeting_point_.id())) return next;
    if (!std::exchange(has_said_so, true)) {
      console_.say("the job runs on " + nodes_text(static_cast<int>(next.members.size())) +
                   "; this node waits until they meet again");
    }
  }
}

void Nodes::tell_end(const AttemptEnd& end) {
  // compareSet keeps the first reason. If node 0 is gone, the other launchers notice it themselves.
  meeting_point_.post([name = attempt_key("end"), value = bytes(end.encode())](c10d::Store& store) {
    store.compareSet(name, {}, value);
    return true;
  });
}

void Nodes::tell_own_failure(const std::string& what) {
  if (!is_alone()) tell_end({.is_failure = true, .text = "node " + std::to_string(node_) + ": " + what});
}

AttemptEnd Nodes::agree_on_end(const AttemptEnd& here, SignalQueue& signals) {
  AttemptEnd end = here;
  try {
    if (!is_alone() && !store_is_lost_) {
      const auto tell = [name = attempt_key("end"), value = bytes(here.encode())](c10d::Store& store) {
        store.compareSet(name, {}, value);
        return read(store, name);
      };
      end = AttemptEnd::decode(meeting_point_.answer(signals, tell).value());
    }
  } catch (const HostIsLost&) {
    store_is_lost_ = true;
  }
  if (end.is_failure) ++failures_;
  return end;
}

std::optional<AttemptEnd> Nodes::end_elsewhere() {
  if (is_alone()) return std::nullopt;
  try {
    if (!look_.valid()) look_ = meeting_point_.post(look());
    if (look_.wait_for(kQuickAnswer) != std::future_status::ready) {
      if (!silence_of_store_.is_over()) return std::nullopt;
      store_is_lost_ = true;
      return AttemptEnd{.is_failure = true, .text = silent(0, meeting_point_.timeout())};
    }
    silence_of_store_.begin_anew();
    const News news = look_.get();
    if (news.attempt != round_.attempt) return std::nullopt;
    if (news.end) return AttemptEnd::decode(*news.end);
    const auto end = meeting_point_.is_host() ? end_seen_in(news) : std::nullopt;
    if (end) tell_end(*end);
    return end;
  } catch (const c10::Error&) {
    store_is_lost_ = true;
    return AttemptEnd{.is_failure = true, .text = "node 0: the connection broke, so its launcher has ended"};
  }
}

/// Returns in node 0 the reason to end the attempt: a member is lost, or more nodes wait and could take part. Once the
/// ranks of any node are done, nodes that wait no longer end the attempt.
std::optional<AttemptEnd> Nodes::end_seen_in(const News& news) {
  attendance_.note(news.launchers);
  if (news.done == count()) return std::nullopt;
  if (const auto lost = attendance_.loss_in(round_)) return AttemptEnd{.is_failure = true, .text = *lost};
  if (news.done > 0 || count() == range_.most) return std::nullopt;
  const auto there = attendance_.candidates(round_);
  const auto waiting =
      std::ranges::count_if(there, [&](const auto& other) { return !round_.node_of(other.member.id); });
  if (waiting == 0) return std::nullopt;
  return AttemptEnd{.is_failure = false,
                    .text = std::to_string(waiting) + (waiting == 1 ? " more node joined" : " more nodes joined")};
}

std::optional<AttemptEnd> Nodes::wait_until_all_are_done(SignalQueue& signals) {
  if (is_alone()) return std::nullopt;
  const std::string done = attempt_key("done");
  for (int increment = 1; meeting_point_.count_in(done, increment, signals) < count(); increment = 0) {
    if (const auto end = end_elsewhere()) return end;
    pause(signals);
  }
  return std::nullopt;
}

std::vector<std::string> Nodes::tell_node_0(const std::string& name, const std::string& value, SignalQueue& signals) {
  if (is_alone()) return {value};
  const auto key = [&](int node) { return attempt_key(name) + "/" + std::to_string(node); };
  meeting_point_.tell(key(node_), value, signals);
  std::vector<std::string> all;
  while (meeting_point_.is_host() && static_cast<int>(all.size()) < count()) {
    const auto look = [next = key(static_cast<int>(all.size()))](c10d::Store& store) { return read(store, next); };
    if (const auto found = meeting_point_.answer(signals, look)) {
      all.push_back(*found);
      continue;
    }
    if (const auto end = end_elsewhere()) throw Exit(kFailure, end->text);
    pause(signals);
  }
  return all;
}

void Nodes::leave(const std::string& problem, SignalQueue& signals) {
  if (is_alone()) return;
  if (!meeting_point_.is_host()) {
    meeting_point_.post([name = meeting_point_.key("left", meeting_point_.id())](c10d::Store& store) {
      store.set(name, bytes(""));
      return true;
    });
    return;
  }
  try {
    meeting_point_.tell(meeting_point_.key("over"), problem, signals);
    for (const auto give_up = Clock::now() + kLeaveTimeout; Clock::now() < give_up; pause(signals)) {
      attendance_.note(meeting_point_.answer(signals, look()).launchers);
      if (attendance_.candidates(round_).size() <= 1) return;
    }
  } catch (const std::exception&) {
    // The job is over, so a lost store does no harm, and a signal may end the wait for the other nodes.
  }
}

}  // namespace fsdprun
