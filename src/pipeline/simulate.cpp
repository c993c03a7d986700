#include <fsdp/pipeline_schedule.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "comm/core/check.h"

namespace fsdp {
namespace {

using Kind = PipelineAction::Kind;

// Consecutive numbers, from 0 on, of the actions that a schedule must have.
class ActionNumbers {
 public:
  explicit ActionNumbers(const PipelineSchedule& schedule) : schedule_(schedule) {}

  size_t count() const {
    return size_t{2} * static_cast<size_t>(schedule_.stages() * schedule_.micro_batches * schedule_.slices);
  }
  size_t of(const PipelineAction& action) const {
    const int in_direction = (action.stage * schedule_.micro_batches + action.micro_batch) * schedule_.slices;
    return static_cast<size_t>(2 * (in_direction + action.slice) + (action.kind == Kind::kBackward));
  }
  bool has(const PipelineAction& action) const {
    const auto is_below = [](int number, int end) { return number >= 0 && number < end; };
    return is_below(action.stage, schedule_.stages()) && is_below(action.micro_batch, schedule_.micro_batches) &&
           is_below(action.slice, schedule_.slices);
  }

 private:
  const PipelineSchedule& schedule_;
};

void require_each_once(const PipelineSchedule& schedule) {
  const auto where = str_cat("fsdp schedule '", schedule.name, "': ");
  require(std::ssize(schedule.actions) == schedule.ranks, where, "expected the actions of ", schedule.ranks,
          " ranks, found those of ", schedule.actions.size());
  require(schedule.slice_lengths.empty() ? schedule.slices == 1 : std::ssize(schedule.slice_lengths) == schedule.slices,
          where, "expected the lengths of its ", schedule.slices, " slices, found ", schedule.slice_lengths.size());
  const ActionNumbers numbers(schedule);
  std::vector<bool> is_there(numbers.count());
  for (int rank = 0; rank < schedule.ranks; ++rank)
    for (const auto& action : schedule.actions[static_cast<size_t>(rank)]) {
      require(numbers.has(action) && schedule.rank_of(action.stage) == rank, where, "rank ", rank, " has the action ",
              action.name(), ", which the schedule cannot contain: a rank has ", schedule.chunks, " stages, ",
              schedule.micro_batches, " micro-batches and ", schedule.slices, " slices");
      require(!is_there[numbers.of(action)], where, "rank ", rank, " has the action ", action.name(), " twice");
      is_there[numbers.of(action)] = true;
    }
  for (int stage = 0; stage < schedule.stages(); ++stage)
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch)
      for (int slice = 0; slice < schedule.slices; ++slice)
        for (const auto kind : {Kind::kForward, Kind::kBackward}) {
          const PipelineAction action{kind, stage, micro_batch, slice};
          require(is_there[numbers.of(action)], where, "rank ", schedule.rank_of(stage), " lacks the action ",
                  action.name());
        }
}

}  // namespace

PipelineTimes simulate(const PipelineSchedule& schedule, const std::function<double(const PipelineAction&)>& duration,
                       double transfer) {
  require_each_once(schedule);
  const ActionNumbers numbers(schedule);
  std::vector<std::optional<double>> ends(numbers.count());  // for each action, the time at which it ends, once known
  PipelineTimes times{std::vector<std::vector<PipelineTimes::Span>>(schedule.actions.size())};

  // Returns an input of the action whose end is not known yet, or nothing if there is none.
  const auto waits_for = [&](const PipelineAction& action) -> std::optional<PipelineAction> {
    for (const auto& input : inputs_of(schedule, action))
      if (!ends[numbers.of(input)]) return input;
    return std::nullopt;
  };
  size_t left = 0;
  for (const auto& actions : schedule.actions) left += actions.size();
  for (bool moves = true; moves && left > 0;) {
    moves = false;
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      auto& spans = times.spans[rank];
      while (spans.size() < schedule.actions[rank].size()) {
        const auto& action = schedule.actions[rank][spans.size()];
        if (waits_for(action)) break;
        double begin = spans.empty() ? 0 : spans.back().end;
        for (const auto& input : inputs_of(schedule, action)) {
          const bool is_own = schedule.rank_of(input.stage) == schedule.rank_of(action.stage);
          begin = std::max(begin, *ends[numbers.of(input)] + (is_own ? 0 : transfer));
        }
        spans.push_back({begin, begin + duration(action)});
        ends[numbers.of(action)] = spans.back().end;
        times.total = std::max(times.total, spans.back().end);
        moves = true;
        --left;
      }
    }
  }
  if (left == 0) return times;
  std::string waiting;
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    const size_t next = times.spans[rank].size();
    if (next == schedule.actions[rank].size()) continue;
    const auto& action = schedule.actions[rank][next];
    waiting += str_cat(waiting.empty() ? "" : "; ", "rank ", rank, " has ", action.name(), " next, which needs ",
                       waits_for(action)->name());
  }
  throw UsageError(str_cat("fsdp schedule '", schedule.name, "': the ranks wait for one another forever: ", waiting,
                           ". Put each action after the actions that it needs"));
}

void validate(const PipelineSchedule& schedule) {
  simulate(schedule, [](const PipelineAction&) { return 1.0; });
}

double PipelineTimes::bubble() const {
  double busy = 0;
  for (const auto& of_rank : spans)
    for (const auto& span : of_rank) busy += span.end - span.begin;
  const double all = total * static_cast<double>(spans.size());
  return all > 0 ? 1 - busy / all : 0;
}

std::string to_text(const PipelineSchedule& schedule, const PipelineTimes& times) {
  size_t width = 1;
  for (const auto& actions : schedule.actions)
    for (const auto& action : actions) width = std::max(width, action.name().size() + 1);
  std::string text;
  for (size_t rank = 0; rank < times.spans.size(); ++rank) {
    std::vector<std::string> cells(static_cast<size_t>(std::lround(times.total)), ".");
    for (size_t i = 0; i < times.spans[rank].size(); ++i)
      for (auto at = std::lround(times.spans[rank][i].begin); at < std::lround(times.spans[rank][i].end); ++at)
        cells[static_cast<size_t>(at)] = schedule.actions[rank][i].name();
    text += str_cat("rank ", rank, ": ");
    for (auto& cell : cells) text += cell.append(width - cell.size(), ' ');
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace fsdp
