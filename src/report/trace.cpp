#include <fsdp/trace.h>

#include <ATen/ops/full.h>

#include <exception>
#include <optional>
#include <utility>

#include "api/rows.h"
#include "comm/core/call_tag.h"
#include "comm/core/check.h"
#include "comm/core/timeline.h"
#include "comm/group/attachment.h"
#include "comm/group/texts.h"
#include "comm/posix/file.h"
#include "report/operator_profile.h"
#include "report/trace_json.h"

namespace fsdp {
namespace {

TraceEvent event_of(const TimelineEntry& entry) {
  return {.name = entry.name,
          .group = entry.subject,
          .is_communication = entry.is_communication,
          .begin_ns = entry.begun,
          .end_ns = entry.ended,
          .has_failed = entry.has_failed,
          .thread = entry.thread,
          .sequence = entry.sequence,
          .bytes = entry.bytes};
}

std::shared_ptr<ProcessGroup> or_default_group(std::shared_ptr<ProcessGroup> group) {
  return group ? std::move(group) : default_process_group();
}

std::string text_of(const FirstError& error) try {
  error.rethrow();
  return {};
} catch (const std::exception& thrown) {
  return what_without_backtrace(thrown);
} catch (...) {
  return "it threw an exception that is not a std::exception";
}

}  // namespace

struct Trace::State {
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Timeline> timeline;
  std::shared_ptr<TimelineEntries> entries;
  int64_t begun = 0;
  std::unique_ptr<report::OperatorProfile> operators = {};
};

Trace::Trace(TraceOptions options) {
  const auto group = or_default_group(std::move(options.process_group));
  const auto where = group->where("trace");
  const auto timeline = Attachment::ranks_of(*group).timeline;
  require(timeline != nullptr, where,
          "a process group over a user-defined communicator cannot be traced. Trace a different process group");
  require(options.max_events > 0, where, "expected max_events of at least 1, found 0");
  auto operators = options.operators ? std::make_unique<report::OperatorProfile>(where) : nullptr;
  const std::shared_ptr<TimelineEntries> entries(new TimelineEntries{options.max_events});
  state_ = std::make_unique<State>(State{group, timeline, entries, timeline->now(), std::move(operators)});
  timeline->record_into(state_->entries);
}

Trace::~Trace() { state_->timeline->forget(state_->entries); }

std::vector<TraceEvent> Trace::events() const {
  std::vector<TraceEvent> events;
  for (const auto& [number, entry] : state_->timeline->read(*state_->entries)) events.push_back(event_of(entry));
  return events;
}

void Trace::write(const std::string& path) const {
  const auto& group = *state_->group;
  const auto now = state_->timeline->now();
  const auto own = events();
  const Tag tag = call_tag("Trace::write", path);
  const auto begun = all_reduce(at::full({}, state_->begun, at::kLong), ReduceOp::kMin, state_->group, tag);
  const auto base = begun.item<int64_t>();
  auto text = report::trace_json(group.rank(), own, base, now);
  // A rank that fails goes on, because the other ranks wait for it. All ranks throw its error at the end.
  FirstError error;
  error.run([&] {
    const auto operators = state_->operators ? state_->operators->end(group.rank(), base) : std::string();
    if (!operators.empty()) text += ",\n" + operators;
  });
  std::optional<OutputFile> file;
  const auto on_first_rank = [&](const auto& act) {
    if (group.rank() == 0) error.run(act);
  };
  on_first_rank([&] {
    remove_leftovers(path);
    file.emplace(path);
  });
  on_first_rank([&] { file->write("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"); });
  collect_texts(group, text, 0, tag, [&](int rank, const std::string& events_of_rank) {
    on_first_rank([&] { file->write((rank > 0 ? ",\n" : "") + events_of_rank); });
  });
  on_first_rank([&] { file->write("\n]}\n"); });
  on_first_rank([&] { file->commit(); });
  const auto failures = gather_texts(group, text_of(error), tag);
  for (size_t rank = 0; rank < failures.size(); ++rank)
    if (!failures[rank].empty())
      throw Error(str_cat(group.where("Trace::write"), "rank ", group.global_ranks()[rank], ": ", failures[rank]));
}

struct TraceSpan::State {
  Span span;
};

TraceSpan::TraceSpan(std::string_view name, std::string_view about) {
  const auto timeline = Attachment::ranks_of(*default_process_group()).timeline;
  if (timeline != nullptr && timeline->is_on()) state_ = std::make_unique<State>(State{Span(timeline, name, about)});
}

TraceSpan::~TraceSpan() = default;

}  // namespace fsdp
