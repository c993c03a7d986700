#include "comm/failure/flight_recorder.h"

#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>

#include "comm/core/text.h"
#include "comm/posix/file.h"

namespace fsdp {
namespace {

constexpr size_t kEntries = 1024;

nlohmann::ordered_json json_of(const TimelineEntry& entry) {
  nlohmann::ordered_json json{{"number", entry.number}, {"operation", entry.name}, {"group", entry.subject}};
  if (entry.track == Track::kCommunication) {
    json["order"] = entry.order;
    json["sequence"] = entry.sequence;
  }
  json["bytes"] = entry.bytes;
  json["stage"] = name_of(entry.stage);
  json["begun_ns"] = entry.begun;
  if (entry.ended != 0) json["ended_ns"] = entry.ended;
  json["thread"] = entry.thread;
  return json;
}

}  // namespace

std::shared_ptr<Timeline> open_timeline() {
  auto timeline = std::make_shared<Timeline>();
  const char* named = std::getenv(kFlightRecorderVariable);
  if (named == nullptr || *named == 0) return timeline;
  timeline->flight_file = absolute_path(named);
  timeline->flight_entries = std::make_shared<TimelineEntries>(kEntries);
  timeline->record_into(timeline->flight_entries);
  return timeline;
}

std::string flight_record_note(const Ranks& ranks) {
  if (ranks.timeline == nullptr || ranks.timeline->flight_entries == nullptr) return {};
  const auto file = str_cat(ranks.timeline->flight_file, ".rank", ranks.name());
  nlohmann::ordered_json json{{"rank", ranks.name()},
                              {"world_size", ranks.global.empty() ? ranks.world_size : ranks.global_size},
                              {"operations", nlohmann::ordered_json::array()}};
  for (const auto& entry : ranks.timeline->read(*ranks.timeline->flight_entries))
    json["operations"].push_back(json_of(entry));
  try {
    write_text(file, json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
    return str_cat(" This rank's last operations are in '", file, "'.");
  } catch (const std::exception& error) {
    return str_cat(" This rank's last operations cannot be written: ", error.what(), ".");
  }
}

}  // namespace fsdp
