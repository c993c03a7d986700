#include "state/format/manifest.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

using json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "fsdp checkpoint";
constexpr int64_t kVersion = 1;
// The text begins with its own checksum, which is computed with these digits in its place.
constexpr std::string_view kBegin = "{\n \"checksum\": \"", kNoChecksum = "0000000000000000";

// Of objects and lists in each other, what the user gives and with what the manifest has around it: the writer of JSON
// calls itself for each.
constexpr int kMostDepth = 100, kMostDepthOfAll = kMostDepth + 2;

json parse_json(std::string_view text, int most_depth, const std::string& where = "") {
  return json::parse(text.begin(), text.end(), [&](int depth, json::parse_event_t event, json&) {
    const bool begins = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth >= most_depth)
      throw FormatError(where + "expected JSON of at most " + std::to_string(most_depth) +
                        " lists and objects in each other");
    return true;
  });
}

uint64_t checksum_of_text(std::string_view text) {
  const std::string begin = std::string(kBegin) + std::string(kNoChecksum);
  std::string blanked = begin + std::string(text.substr(begin.size()));
  return checksum_of(std::as_bytes(std::span(blanked)));
}

json json_of(const TensorRecords& records) {
  json all = json::object();
  for (const auto& [name, record] : records) {
    json parts = json::array();
    for (const auto& part : record.parts) {
      json checksums = json::array();
      for (const auto checksum : part.checksums) checksums.push_back(hex_of(checksum));
      parts.push_back({{"file", part.file},
                       {"first_row", part.first_row},
                       {"rows", part.rows},
                       {"checksums", std::move(checksums)}});
    }
    all[name] = {{"dtype", name_of(record.dtype)}, {"shape", record.sizes}, {"parts", std::move(parts)}};
  }
  return all;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw FormatError(path + ": " + what + ". The checkpoint is damaged: take another one");
}

uint64_t digits_in(const json& value, const std::string& path) {
  const auto checksum = checksum_in(value.get_ref<const std::string&>());
  if (!checksum) fail(path, "expected a checksum of 16 hexadecimal digits, found " + value.dump());
  return *checksum;
}

TensorPart part_in(const json& value, const std::string& path) {
  TensorPart part{
      value.at("file").get<std::string>(), value.at("first_row").get<int64_t>(), value.at("rows").get<int64_t>(), {}};
  for (const auto& checksum : value.at("checksums")) part.checksums.push_back(digits_in(checksum, path));
  return part;
}

void require_whole(const TensorRecord& record, const std::string& name, const Manifest& manifest,
                   const std::string& path) {
  const auto what = "tensor '" + name + "' of sizes " + text_of(record.sizes);
  if (!bytes_of(record.dtype, record.sizes)) fail(path, what + ": expected sizes that memory can have");
  int64_t next = 0;
  for (const auto& part : record.parts) {
    if (part.first_row != next || part.rows <= 0 || part.rows > record.rows() - next)
      fail(path, what + ": expected rows from " + std::to_string(next) + " on, found " + std::to_string(part.rows) +
                     " rows from " + std::to_string(part.first_row) + " on in " + part.file);
    next += part.rows;
    if (!manifest.files.contains(part.file)) fail(path, what + ": its file '" + part.file + "' is not listed");
    const auto bytes = static_cast<uint64_t>(part.rows) * record.bytes_per_row();
    if (part.checksums.size() != (bytes + kChunkBytes - 1) / kChunkBytes)
      fail(path, what + ": expected a checksum for each MiB of " + std::to_string(bytes) + " bytes, found " +
                     std::to_string(part.checksums.size()));
  }
  if (next != record.rows()) fail(path, what + ": the rows from " + std::to_string(next) + " on are missing");
}

TensorRecords records_in(const json& all, const std::string& path) {
  TensorRecords records;
  for (const auto& [name, value] : all.items()) {
    const auto dtype = dtype_named(value.at("dtype").get_ref<const std::string&>());
    if (!dtype)
      fail(path, "tensor '" + name + "': expected a dtype of " + dtype_names() + ", found " + value.at("dtype").dump());
    TensorRecord record{*dtype, value.at("shape").get<std::vector<int64_t>>(), {}};
    for (const auto& part : value.at("parts")) record.parts.push_back(part_in(part, path));
    records.emplace(name, std::move(record));
  }
  return records;
}

std::map<std::string, FileRecord> files_in(const json& all, const std::string& path) {
  std::map<std::string, FileRecord> files;
  for (const auto& [name, value] : all.items()) {
    if (!is_plain_name(name)) fail(path, "expected names of files in the same folder, found '" + name + "'");
    files[name] = {value.at("bytes").get<uint64_t>(), digits_in(value.at("header_checksum"), path),
                   value.value("host", std::string())};
  }
  return files;
}

Manifest manifest_in(const json& all, const std::string& path) {
  Manifest manifest;
  manifest.step = all.at("step").get<int64_t>();
  manifest.world_size = all.at("world_size").get<int64_t>();
  manifest.versions = all.at("versions").get<std::map<std::string, std::string>>();
  manifest.files = files_in(all.at("files"), path);
  manifest.model = records_in(all.at("model"), path);
  manifest.training = records_in(all.at("training"), path);
  manifest.optimizer = all.at("optimizer").dump();
  manifest.extra = all.at("extra").dump();
  const auto states = all.value("states", json::object());
  for (const auto& [name, state] : states.items()) manifest.states[name] = state.dump();
  return manifest;
}

}  // namespace

std::vector<int64_t> TensorRecord::sizes_of(int64_t row_count) const {
  auto part = sizes;
  if (!part.empty()) part[0] = row_count;
  return part;
}

uint64_t TensorRecord::bytes_per_row() const { return bytes_of(dtype, sizes_of(1)).value_or(0); }

bool is_plain_name(std::string_view name) {
  return !name.empty() && name[0] != '.' && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

std::string manifest_text(Manifest manifest) try {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"header_checksum", hex_of(file.header_checksum)}};
    if (!file.host.empty()) files[name]["host"] = file.host;
  }
  json states = json::object();
  for (const auto& [name, state] : manifest.states) states[name] = parse_json(state, kMostDepth);
  const json all = {{"checksum", kNoChecksum},
                    {"format", kFormat},
                    {"version", kVersion},
                    {"step", manifest.step},
                    {"world_size", manifest.world_size},
                    {"versions", manifest.versions},
                    {"files", std::move(files)},
                    {"model", json_of(manifest.model)},
                    {"training", json_of(manifest.training)},
                    {"optimizer", parse_json(manifest.optimizer, kMostDepth)},
                    {"extra", parse_json(manifest.extra, kMostDepth)},
                    {"states", std::move(states)}};
  auto text = all.dump(1) + "\n";
  return text.replace(kBegin.size(), kNoChecksum.size(), hex_of(checksum_of_text(text)));
} catch (const json::exception& error) {
  throw FormatError(std::string("a manifest cannot have this: ") + error.what());
}

Manifest parse_manifest_part(std::string_view text, const std::string& path) try {
  if (!text.starts_with(kBegin) || text.size() < kBegin.size() + kNoChecksum.size())
    fail(path, "expected the manifest of a checkpoint, found other text");
  const auto expected = text.substr(kBegin.size(), kNoChecksum.size());
  if (const auto found = hex_of(checksum_of_text(text)); found != expected)
    fail(path, "expected text with the checksum " + std::string(expected) + ", found " + found);
  const auto all = parse_json(text, kMostDepthOfAll, path + ": ");
  if (all.at("format") != kFormat) fail(path, "expected the format '" + std::string(kFormat) + "'");
  if (all.at("version").get<int64_t>() > kVersion)
    throw FormatError(path + ": expected version " + std::to_string(kVersion) + " of the format, found " +
                      all.at("version").dump() +
                      ". Read it with the release of fsdp that wrote it: " + all.at("versions").dump());
  return manifest_in(all, path);
} catch (const json::exception& error) {
  fail(path, std::string("expected the fields of a manifest, found: ") + error.what());
}

Manifest parse_manifest(std::string_view text, const std::string& path) {
  auto manifest = parse_manifest_part(text, path);
  for (const auto* records : {&manifest.model, &manifest.training})
    for (const auto& [name, record] : *records) require_whole(record, name, manifest, path);
  return manifest;
}

void JoinedManifest::add(std::string_view text, const std::string& whose) {
  auto part = parse_manifest_part(text, whose);
  optimizers_.push_back(std::exchange(part.optimizer, {}));
  if (!all_) {
    all_ = std::move(part);
    return;
  }
  all_->files.merge(part.files);
  for (const auto section : {&Manifest::model, &Manifest::training})
    for (auto& [name, record] : part.*section) {
      const auto [found, is_new] = ((*all_).*section).try_emplace(name, record);
      if (is_new) continue;
      auto& known = found->second;
      if (known.dtype != record.dtype || known.sizes != record.sizes)
        throw FormatError("tensor '" + name + "': expected the same on every rank, found " +
                          std::string(name_of(known.dtype)) + " " + text_of(known.sizes) + " and " +
                          std::string(name_of(record.dtype)) + " " + text_of(record.sizes) +
                          ". Build the same model and optimizer on every rank");
      std::ranges::move(record.parts, std::back_inserter(known.parts));
    }
}

Manifest JoinedManifest::take() {
  for (const auto section : {&Manifest::model, &Manifest::training})
    for (auto& [name, record] : (*all_).*section) std::ranges::sort(record.parts, {}, &TensorPart::first_row);
  all_->optimizer = joined_objects(optimizers_);
  return std::move(*all_);
}

std::string joined_objects(const std::vector<std::string>& objects) {
  json all = json::object();
  for (const auto& object : objects) all.update(json::parse(object), /*merge_objects=*/true);
  return all.dump();
}

}  // namespace fsdp::state
