#include "comm/failure/flight_recorder.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/posix/file.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;

constexpr size_t kEntries = 1024;
constexpr std::array<char, 8> kMagic = {'f', 's', 'd', 'p', 'f', 'l', 'y', '1'};

// The file FILE.rankN.
struct FlightRecord {
  std::array<char, 8> magic = kMagic;
  int32_t rank = 0, world_size = 1, process = 0;
  uint32_t entry_bytes = sizeof(TimelineEntry);
  int64_t opened = 0;  // nanoseconds since 1970
  std::array<char, 64> host{};
  alignas(128) std::array<TimelineEntry, kEntries> entries{};
};

std::string rank_file(const std::string& file, int rank) { return file + ".rank" + std::to_string(rank); }

// The files FILE.rankN that there are.
std::vector<fs::path> rank_files(const std::string& file) {
  const fs::path path(file);
  const auto folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto stem = path.filename().string() + ".rank";
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto name = entry.path().filename().string();
    int rank = 0;
    const char* end = name.data() + name.size();
    if (name.size() > stem.size() && name.starts_with(stem) &&
        std::from_chars(name.data() + stem.size(), end, rank).ptr == end)
      found.push_back(entry.path());
  }
  return found;
}

[[noreturn]] void refuse(const Ranks& ranks, const std::string& path, const std::string& why) {
  throw UsageError(str_cat(ranks.where("init_process_group"), "FSDP_FLIGHT_RECORDER: '", path,
                           "' cannot be written: ", why, ". Name a file in an existing folder with room for ",
                           sizeof(FlightRecord), " bytes a rank, or raise the limit on the size of files (ulimit -f)"));
}

// A new file takes the name, so that whoever maps an older one keeps its memory.
std::shared_ptr<FlightRecord> map_new_file(const Ranks& ranks, const std::string& path) try {
  OutputFile file(path);
  // Room is taken now: writing to memory that the disk has no room for ends the process.
  if (const int error = set_file_size(file.number(), sizeof(FlightRecord), /*now=*/true))
    refuse(ranks, path, std::strerror(error));
  void* memory = mmap(nullptr, sizeof(FlightRecord), PROT_READ | PROT_WRITE, MAP_SHARED, file.number(), 0);
  if (memory == MAP_FAILED) refuse(ranks, path, std::strerror(errno));
  std::shared_ptr<FlightRecord> record(new (memory) FlightRecord, [](void* own) { munmap(own, sizeof(FlightRecord)); });
  file.commit();
  return record;
} catch (const FileError& error) {
  throw UsageError(str_cat(ranks.where("init_process_group"), "FSDP_FLIGHT_RECORDER: ", error.what()));
}

// Null if it is none of ours.
std::unique_ptr<FlightRecord> read_record(const fs::path& path) {
  auto record = std::make_unique<FlightRecord>();
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(record.get()), sizeof(FlightRecord));
  if (!file || record->magic != kMagic || record->entry_bytes != sizeof(TimelineEntry)) return nullptr;
  for (auto& entry : record->entries) entry.name.back() = entry.subject.back() = entry.order.back() = 0;
  return record;
}

// Those of the newest run, in the order of ranks.
std::vector<std::unique_ptr<FlightRecord>> read_records(const std::string& file) {
  std::vector<std::unique_ptr<FlightRecord>> records;
  for (const auto& path : rank_files(file))
    if (auto record = read_record(path)) records.push_back(std::move(record));
  if (records.empty()) return records;
  const auto newest = std::ranges::max_element(records, {}, [](const auto& record) { return record->opened; });
  const int world_size = (*newest)->world_size;
  std::erase_if(records, [&](const auto& record) { return record->world_size != world_size; });
  std::ranges::sort(records, {}, [](const auto& record) { return record->rank; });
  return records;
}

nlohmann::ordered_json json_of(const TimelineEntry& entry) {
  nlohmann::ordered_json json{
      {"number", entry.number}, {"operation", entry.name.data()}, {"group", entry.subject.data()}};
  if (entry.track == Track::kCommunication) {
    json["order"] = entry.order.data();
    json["sequence"] = entry.sequence;
  }
  json["bytes"] = entry.bytes;
  json["stage"] = name_of(entry.stage);
  json["begun_ns"] = entry.begun;
  if (entry.ended != 0) json["ended_ns"] = entry.ended;
  json["thread"] = entry.thread;
  return json;
}

std::string text_of(const std::vector<std::unique_ptr<FlightRecord>>& records) {
  nlohmann::ordered_json json;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const auto& record : records) {
    nlohmann::ordered_json rank{{"rank", record->rank},
                                {"world_size", record->world_size},
                                {"host", record->host.data()},
                                {"process", record->process}};
    rank["operations"] = nlohmann::ordered_json::array();
    for (const auto& entry : EntryRing::read(record->entries)) rank["operations"].push_back(json_of(entry));
    json["ranks"].push_back(std::move(rank));
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::shared_ptr<Timeline> open_timeline(const Ranks& ranks) {
  auto timeline = std::make_shared<Timeline>();
  const char* named = std::getenv(kFlightRecorderVariable);
  if (named == nullptr || *named == 0) return timeline;
  const auto file = absolute_path(named);
  const auto record = map_new_file(ranks, rank_file(file, ranks.name()));
  record->rank = ranks.name();
  record->world_size = ranks.global.empty() ? ranks.world_size : ranks.global_size;
  record->process = getpid();
  record->opened = timeline->now();
  gethostname(record->host.data(), record->host.size() - 1);
  timeline->record_into(std::make_shared<EntryRing>(record->entries, record));
  timeline->flight_file = file;
  return timeline;
}

// Of ranks that fail at once, one that read before others had written their last operation may be the last to write the
// file: each looks again once it has written. Ranks that go on meanwhile are not waited for.
int gather_flight_records(const std::string& file) try {
  constexpr int kMostTimes = 10;
  std::string written;
  size_t ranks = 0;
  for (int i = 0; i < kMostTimes; ++i) {
    const auto records = read_records(file);
    auto text = records.empty() ? std::string() : text_of(records);
    if (text == written) break;
    write_text(file, text + '\n');
    written = std::move(text);
    ranks = records.size();
  }
  return static_cast<int>(ranks);
} catch (const FileError& error) {
  throw Error(str_cat("[fsdp] flight recorder: ", error.what()));
}

void remove_flight_records(const std::string& file) {
  std::error_code ignored;
  for (const auto& path : rank_files(file)) fs::remove(path, ignored);
}

std::string flight_record_note(const Ranks& ranks) {
  if (ranks.timeline == nullptr || ranks.timeline->flight_file.empty()) return {};
  const auto& file = ranks.timeline->flight_file;
  try {
    gather_flight_records(file);
    return str_cat(" The last operations of all ranks of this host are in '", file, "'.");
  } catch (const std::exception&) {
    return str_cat(" The last operations of each rank are in '", file, ".rankN', but '", file, "' cannot be written.");
  }
}

}  // namespace fsdp
