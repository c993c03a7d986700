#include "report/trace_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace fsdp::report {
namespace {

using Json = nlohmann::ordered_json;

// Communication tracks get low numbers; thread tracks use the system's thread IDs.
constexpr size_t kFirstTrack = 1;

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }

int64_t end_of(const TraceEvent& event, int64_t now_ns) { return event.end_ns == 0 ? now_ns : event.end_ns; }

void append(std::string& text, const Json& event) {
  if (!text.empty()) text += ",\n";
  text += event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json label(const char* what, int rank, size_t track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

Json position(const char* what, int rank, size_t track, size_t index) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"sort_index", index}}}};
}

Json interval(int rank, size_t track, const TraceEvent& event, int64_t base_ns, int64_t now_ns) {
  Json json{{"ph", "X"},
            {"name", event.group.empty() ? event.name : event.name + " " + event.group},
            {"cat", event.is_communication ? "communication" : "compute"},
            {"pid", rank},
            {"tid", track},
            {"ts", microseconds(event.begin_ns - base_ns)},
            {"dur", microseconds(end_of(event, now_ns) - event.begin_ns)}};
  json["args"] = {{"what", event.name}, {"group", event.group}};
  if (event.is_communication) {
    json["args"]["sequence"] = event.sequence;
    json["args"]["bytes"] = event.bytes;
  }
  if (event.end_ns == 0) json["args"]["unfinished"] = true;
  if (event.has_failed) json["args"]["failed"] = true;
  return json;
}

}  // namespace

std::vector<size_t> tracks_of(std::span<const TraceEvent> events) {
  std::vector<size_t> tracks;
  std::vector<int64_t> ends;  // the end of the last event of each track
  for (const auto& event : events) {
    const auto is_free = [&](int64_t end) { return end <= event.begin_ns; };
    const auto free = std::ranges::find_if(ends, is_free);
    tracks.push_back(static_cast<size_t>(free - ends.begin()));
    if (free == ends.end()) ends.push_back(0);
    ends[tracks.back()] = event.end_ns;
  }
  return tracks;
}

std::string trace_json(int rank, std::span<const TraceEvent> events, int64_t base_ns, int64_t now_ns) {
  std::vector<TraceEvent> communication, compute;
  for (auto event : events) {
    event.end_ns = end_of(event, now_ns);
    (event.is_communication ? communication : compute).push_back(std::move(event));
  }
  const auto tracks = tracks_of(communication);
  std::string text;
  append(text, label("process_name", rank, 0, "rank " + std::to_string(rank)));
  append(text, position("process_sort_index", rank, 0, static_cast<size_t>(rank)));
  // The thread with the most events comes first.
  std::map<int32_t, size_t> threads;
  for (const auto& event : compute) ++threads[event.thread];
  const auto first =
      std::ranges::max_element(threads, {}, [](const auto& thread) { return thread.second; });
  for (auto thread = threads.begin(); thread != threads.end(); ++thread) {
    const auto track = static_cast<size_t>(thread->first);
    append(text, label("thread_name", rank, track, thread == first ? "compute" : "compute, another thread"));
    append(text, position("thread_sort_index", rank, track, thread == first ? 0 : 1));
  }
  const size_t most = tracks.empty() ? 0 : *std::ranges::max_element(tracks) + 1;
  for (size_t track = 0; track < most; ++track) {
    append(text, label("thread_name", rank, kFirstTrack + track, "communication"));
    append(text, position("thread_sort_index", rank, kFirstTrack + track, 2 + track));
  }
  for (const auto& event : compute)
    append(text, interval(rank, static_cast<size_t>(event.thread), event, base_ns, now_ns));
  for (size_t i = 0; i < communication.size(); ++i)
    append(text, interval(rank, kFirstTrack + tracks[i], communication[i], base_ns, now_ns));
  return text;
}

}  // namespace fsdp::report
