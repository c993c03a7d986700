#include "state/format/manifest.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

using json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "fsdp checkpoint";
// The newest version of the format. A manifest has version 1 if each of its parts consists of rows of dim 0.
constexpr int64_t kVersion = 2;
// The text begins with its own checksum, which is computed over the text with these zeros in the checksum's place.
constexpr std::string_view kBegin = "{\n \"checksum\": \"", kNoChecksum = "0000000000000000";

// Maximum nesting depth of lists and objects in the user's JSON, and in the whole manifest. The depth is limited
// because the JSON writer is recursive.
constexpr int kMostDepth = 100, kMostDepthOfAll = kMostDepth + 2;

json parse_json(std::string_view text, int most_depth, const std::string& where = "") {
  return json::parse(text.begin(), text.end(), [&](int depth, json::parse_event_t event, json&) {
    const bool begins = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth >= most_depth)
      throw FormatError(where + "expected JSON of at most " + std::to_string(most_depth) +
                        " levels of nested lists and objects");
    return true;
  });
}

uint64_t checksum_of_text(std::string_view text) {
  const std::string begin = std::string(kBegin) + std::string(kNoChecksum);
  std::string blanked = begin + std::string(text.substr(begin.size()));
  return checksum_of(std::as_bytes(std::span(blanked)));
}

int64_t product(std::span<const int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Returns true if a part consists of rows of dim 0. A scalar has one row.
bool has_whole_rows(const TensorPart& part, const TensorRecord& record) {
  for (size_t dim = 1; dim < record.sizes.size(); ++dim)
    if (part.sizes[dim] != record.sizes[dim]) return false;
  return true;
}

bool has_whole_rows(const TensorRecords& records) {
  return std::ranges::all_of(records, [](const auto& named) {
    return std::ranges::all_of(named.second.parts,
                               [&](const TensorPart& part) { return has_whole_rows(part, named.second); });
  });
}

json json_of(const TensorPart& part, const TensorRecord& record) {
  json value = {{"file", part.file}};
  if (!has_whole_rows(part, record)) {
    value["offsets"] = part.offsets;
    value["sizes"] = part.sizes;
  } else {
    value["first_row"] = part.offsets.empty() ? 0 : part.offsets[0];
    value["rows"] = part.sizes.empty() ? 1 : part.sizes[0];
  }
  auto& checksums = value["checksums"] = json::array();
  for (const auto checksum : part.checksums) checksums.push_back(hex_of(checksum));
  return value;
}

json json_of(const TensorRecords& records) {
  json all = json::object();
  for (const auto& [name, record] : records) {
    json parts = json::array();
    for (const auto& part : record.parts) parts.push_back(json_of(part, record));
    all[name] = {{"dtype", name_of(record.dtype)}, {"shape", record.sizes}, {"parts", std::move(parts)}};
  }
  return all;
}

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw FormatError(path + ": " + what + ". The checkpoint is damaged: use another one");
}

uint64_t digits_in(const json& value, const std::string& path) {
  const auto checksum = checksum_in(value.get_ref<const std::string&>());
  if (!checksum) fail(path, "expected a checksum of 16 hexadecimal digits, found " + value.dump());
  return *checksum;
}

TensorPart part_in(const json& value, const TensorRecord& record, const std::string& path) {
  TensorPart part{value.at("file").get<std::string>(), std::vector<int64_t>(record.sizes.size()), record.sizes, {}};
  if (value.contains("offsets")) {
    part.offsets = value["offsets"].get<std::vector<int64_t>>();
    part.sizes = value.at("sizes").get<std::vector<int64_t>>();
  } else if (const auto first = value.at("first_row").get<int64_t>(), rows = value.at("rows").get<int64_t>();
             !record.sizes.empty()) {
    part.offsets[0] = first;
    part.sizes[0] = rows;
  }
  if (part.offsets.size() != record.sizes.size() || part.sizes.size() != record.sizes.size())
    fail(path, "expected offsets and sizes in " + std::to_string(record.sizes.size()) + " dims, found " + value.dump());
  for (const auto& checksum : value.at("checksums")) part.checksums.push_back(digits_in(checksum, path));
  return part;
}

// Returns true if the part is inside the tensor and its elements are consecutive.
bool is_range(const TensorPart& part, std::span<const int64_t> sizes) {
  bool is_full = true;  // true while the part covers all later dims completely
  for (size_t dim = sizes.size(); dim-- > 0;) {
    const auto offset = part.offsets[dim], size = part.sizes[dim];
    if (offset < 0 || size < 0 || size > sizes[dim] || offset > sizes[dim] - size || (size > 1 && !is_full))
      return false;
    is_full = is_full && size == sizes[dim];
  }
  return true;
}

void require_whole(const TensorRecord& record, const std::string& name, const Manifest& manifest,
                   const std::string& path) {
  const auto what = "tensor '" + name + "' of sizes " + text_of(record.sizes);
  if (!bytes_of(record.dtype, record.sizes)) fail(path, what + ": expected sizes that fit into memory");
  int64_t next = 0;
  for (const auto& part : record.parts) {
    const bool is_in = is_range(part, record.sizes);
    const auto [first, count] = is_in ? record.elements_of(part) : ElementRange{};
    if (!is_in || first != next || (count == 0 && record.numel() > 0))
      fail(path, what + ": expected a part with consecutive elements from " + std::to_string(next) +
                     " on, found one of sizes " + text_of(part.sizes) + " at " + text_of(part.offsets) + " in " +
                     part.file);
    next += count;
    if (!manifest.files.contains(part.file)) fail(path, what + ": its file '" + part.file + "' is not listed");
    const auto bytes = static_cast<uint64_t>(count) * bytes_of(record.dtype);
    if (part.checksums.size() != (bytes + kChunkBytes - 1) / kChunkBytes)
      fail(path, what + ": expected a checksum for each MiB of " + std::to_string(bytes) + " bytes, found " +
                     std::to_string(part.checksums.size()));
  }
  if (next != record.numel()) fail(path, what + ": the elements from " + std::to_string(next) + " on are missing");
}

TensorRecords records_in(const json& all, const std::string& path) {
  TensorRecords records;
  for (const auto& [name, value] : all.items()) {
    const auto dtype = dtype_named(value.at("dtype").get_ref<const std::string&>());
    if (!dtype)
      fail(path, "tensor '" + name + "': expected one of the dtypes " + dtype_names() + ", found " +
                     value.at("dtype").dump());
    TensorRecord record{*dtype, value.at("shape").get<std::vector<int64_t>>(), {}};
    for (const auto& part : value.at("parts")) record.parts.push_back(part_in(part, record, path));
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

ElementRange overlap(ElementRange a, ElementRange b) {
  const auto first = std::max(a.first, b.first), end = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<int64_t>(end - first, 0)};
}

int64_t TensorRecord::numel() const { return product(sizes); }

ElementRange TensorRecord::elements_of(const TensorPart& part) const {
  int64_t first = 0;
  for (size_t dim = 0; dim < sizes.size(); ++dim) first = first * sizes[dim] + part.offsets[dim];
  return {first, product(part.sizes)};
}

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
                    {"version", has_whole_rows(manifest.model) && has_whole_rows(manifest.training) ? 1 : kVersion},
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
  throw FormatError(std::string("the manifest cannot be written as JSON: ") + error.what());
}

Manifest parse_manifest_part(std::string_view text, const std::string& path) try {
  if (!text.starts_with(kBegin) || text.size() < kBegin.size() + kNoChecksum.size())
    fail(path, "expected the manifest of a checkpoint, found different text");
  const auto expected = text.substr(kBegin.size(), kNoChecksum.size());
  if (const auto found = hex_of(checksum_of_text(text)); found != expected)
    fail(path, "expected text with the checksum " + std::string(expected) + ", found " + found);
  const auto all = parse_json(text, kMostDepthOfAll, path + ": ");
  if (all.at("format") != kFormat) fail(path, "expected the format '" + std::string(kFormat) + "'");
  if (all.at("version").get<int64_t>() > kVersion)
    throw FormatError(path + ": expected version " + std::to_string(kVersion) + " of the format, found " +
                      all.at("version").dump() +
                      ". Read the checkpoint with the release of fsdp that wrote it: " + all.at("versions").dump());
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
        throw FormatError("tensor '" + name + "': expected the same dtype and sizes on every rank, found " +
                          std::string(name_of(known.dtype)) + " " + text_of(known.sizes) + " and " +
                          std::string(name_of(record.dtype)) + " " + text_of(record.sizes) +
                          ". Build the same model and optimizer on every rank");
      std::ranges::move(record.parts, std::back_inserter(known.parts));
    }
}

Manifest JoinedManifest::take() {
  for (const auto section : {&Manifest::model, &Manifest::training})
    for (auto& [name, record] : (*all_).*section) std::ranges::sort(record.parts, {}, &TensorPart::offsets);
  all_->optimizer = joined_objects(optimizers_);
  return std::move(*all_);
}

std::string joined_objects(const std::vector<std::string>& objects) {
  json all = json::object();
  for (const auto& object : objects) all.update(json::parse(object), /*merge_objects=*/true);
  return all.dump();
}

}  // namespace fsdp::state
