#include <fsdp/trace.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fsdp/collectives.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <utility>

#include "comm/core/check.h"
#include "comm/core/timeline.h"
#include "comm/group/attachment.h"
#include "report/operator_profile.h"
#include "report/trace_json.h"

namespace fsdp {
namespace {

TraceEvent event_of(const TimelineEntry& entry) {
  return {.name = entry.name.data(),
          .group = entry.subject.data(),
          .is_communication = entry.track == Track::kCommunication,
          .begin_ns = entry.begun,
          .end_ns = entry.ended,
          .has_failed = entry.stage == Stage::kFailed,
          .thread = entry.thread,
          .sequence = entry.sequence,
          .bytes = entry.bytes};
}

std::shared_ptr<ProcessGroup> or_default_group(std::shared_ptr<ProcessGroup> group) {
  return group ? std::move(group) : default_process_group();
}

at::Tensor bytes_of_text(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

// Rank 0 gives each rank's text to `take`, in the order of ranks.
void collect(const std::shared_ptr<ProcessGroup>& group, const std::string& own,
             const std::function<void(const std::string&)>& take) {
  const auto sizes = all_gather(at::full({}, static_cast<int64_t>(own.size()), at::kLong), group);
  const Tag tag{"trace", {}};
  if (group->rank() != 0) return group->communicator().send(bytes_of_text(own), 0, tag)->wait();
  take(own);
  for (int rank = 1; rank < group->world_size(); ++rank) {
    const auto bytes = at::empty({sizes[rank].item<int64_t>()}, at::kByte);
    group->communicator().recv(bytes, rank, tag)->wait();
    take({static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())});
  }
}

}  // namespace

struct Trace::State {
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Timeline> timeline;
  std::shared_ptr<EntryRing> ring;
  int64_t begun = 0;
  std::unique_ptr<report::OperatorProfile> operators = {};
};

Trace::Trace(TraceOptions options) {
  const auto group = or_default_group(std::move(options.process_group));
  const auto where = group->where("trace");
  const auto timeline = Attachment::timeline_of(*group);
  require(timeline != nullptr, where, "a process group over a communicator of one's own has no timeline");
  require(options.max_events > 0, where, "expected max_events of at least 1, found 0");
  auto operators = options.operators ? std::make_unique<report::OperatorProfile>(where) : nullptr;
  state_ = std::make_unique<State>(
      State{group, timeline, std::make_shared<EntryRing>(options.max_events), timeline->now(), std::move(operators)});
  timeline->record_into(state_->ring);
}

Trace::~Trace() { state_->timeline->forget(state_->ring); }

std::vector<TraceEvent> Trace::events() const {
  std::vector<TraceEvent> events;
  for (const auto& entry : state_->timeline->entries_of(*state_->ring)) events.push_back(event_of(entry));
  return events;
}

void Trace::write(const std::string& path) const {
  const auto& group = *state_->group;
  const auto now = state_->timeline->now();
  const auto own = events();
  const auto begun = all_reduce(at::full({}, state_->begun, at::kLong), ReduceOp::kMin, state_->group);
  const auto base = begun.item<int64_t>();
  auto text = report::trace_json(group.rank(), own, base, now);
  std::string problem;  // the other ranks wait for this one
  try {
    const auto operators = state_->operators ? state_->operators->end(group.rank(), base) : std::string();
    if (!operators.empty()) text += ",\n" + operators;
  } catch (const Error& error) {
    problem = error.what_without_backtrace();
  }
  std::ofstream file;
  if (group.rank() == 0) file.open(path);
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  bool is_first = true;
  collect(state_->group, text, [&](const std::string& events_of_rank) {
    file << (std::exchange(is_first, false) ? "" : ",\n") << events_of_rank;
  });
  file << "\n]}\n";
  file.close();
  if (group.rank() == 0 && file.fail())
    problem = "rank 0 cannot write '" + path + "'. Name a file in an existing folder with room";
  const auto is_written =
      all_reduce(at::full({}, static_cast<int64_t>(problem.empty()), at::kLong), ReduceOp::kMin, state_->group);
  if (is_written.item<int64_t>() == 0)
    throw Error(group.where("trace") +
                (problem.empty() ? "another rank could not write its part of '" + path + "', and says why" : problem));
}

struct TraceSpan::State {
  Span span;
};

TraceSpan::TraceSpan(std::string_view name, std::string_view about) {
  const auto timeline = Attachment::timeline_of(*default_process_group());
  if (timeline != nullptr && timeline->is_on())
    state_ = std::make_unique<State>(State{Span(timeline, Track::kCompute, name, about)});
}

TraceSpan::~TraceSpan() = default;

}  // namespace fsdp
