#include "state/format/header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "state/format/format_error.h"
#include "state/format/header_json.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

constexpr std::string_view kNotWhole = ". The file is damaged or incomplete: use another copy or another checkpoint";

void require_bytes(const Entry& entry, const std::string& path) {
  const auto expected = bytes_of(entry.dtype, entry.sizes);
  const auto what = path + ": entry '" + entry.name + "' of sizes " + text_of(entry.sizes) + " and dtype " +
                    std::string(name_of(entry.dtype));
  if (!expected) throw FormatError(what + ": expected sizes that fit into memory" + std::string(kNotWhole));
  if (entry.end < entry.begin || entry.bytes() != *expected)
    throw FormatError(what + ": expected " + std::to_string(*expected) + " bytes, found data_offsets [" +
                      std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]" + std::string(kNotWhole));
}

// Throws FormatError unless each entry begins where the previous one ends. The entries are sorted by their offsets.
void require_cover(const std::vector<Entry>& entries, uint64_t data_bytes, const std::string& path) {
  uint64_t end = 0;
  for (const auto& entry : entries) {
    if (entry.begin != end)
      throw FormatError(path + ": entry '" + entry.name + "': expected its data at byte " + std::to_string(end) +
                        ", where the previous entry ends, but the data begins at byte " + std::to_string(entry.begin) +
                        std::string(kNotWhole));
    end = entry.end;
  }
  if (end != data_bytes)
    throw FormatError(path + ": expected " + std::to_string(end) + " bytes of data after the header, found " +
                      std::to_string(data_bytes) + std::string(kNotWhole));
}

constexpr std::string_view kDtypeOf = "fsdp.dtype.";

// Replaces the dtype and sizes of an entry that is stored as pairs by those of the tensor.
void undo_pairs(Entry& entry, std::string_view dtype_name, const std::string& path) {
  const auto dtype = dtype_named(dtype_name);
  if (!dtype || stored_as_pairs_of(*dtype) != entry.dtype || entry.sizes.empty() || entry.sizes.back() != 2)
    throw FormatError(path + ": entry '" + entry.name + "' of sizes " + text_of(entry.sizes) + " and dtype " +
                      std::string(name_of(entry.dtype)) + ": expected pairs of numbers, because the metadata gives " +
                      "this entry the dtype '" + std::string(dtype_name) + "'" + std::string(kNotWhole));
  entry.dtype = *dtype;
  entry.sizes.pop_back();
}

void undo_pairs(Header& header, const std::string& path) {
  for (auto& entry : header.entries)
    if (auto mark = header.metadata.extract(std::string(kDtypeOf) + entry.name)) undo_pairs(entry, mark.mapped(), path);
}

}  // namespace

std::vector<int64_t> stored_sizes(const Entry& entry) {
  auto sizes = entry.sizes;
  if (stored_as_pairs_of(entry.dtype)) sizes.push_back(2);
  return sizes;
}

uint64_t header_length(std::span<const std::byte> first_bytes, uint64_t file_bytes, const std::string& path) {
  if (file_bytes < kLengthBytes || first_bytes.size() < kLengthBytes)
    throw FormatError(path + ": expected a safetensors file, found " + std::to_string(file_bytes) + " bytes" +
                      std::string(kNotWhole));
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(first_bytes[i]) << (8 * i);
  const auto most = std::min(file_bytes - kLengthBytes, kMaxHeaderBytes);
  if (length > most)
    throw FormatError(path + ": expected a header of at most " + std::to_string(most) + " bytes, found a length of " +
                      std::to_string(length) + std::string(kNotWhole));
  return length;
}

Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& path) {
  auto header = header_in_json(json, path);
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  undo_pairs(header, path);
  for (const auto& entry : header.entries) require_bytes(entry, path);
  require_cover(header.entries, data_bytes, path);
  return header;
}

void lay_out(std::vector<Entry>& entries, const std::string& path) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return bytes_of(a.dtype) > bytes_of(b.dtype); });
  std::set<std::string_view> names;
  uint64_t end = 0;
  for (auto& entry : entries) {
    if (entry.name == "__metadata__")
      throw FormatError(path + ": safetensors files reserve the name '__metadata__'. Rename the tensor of this name");
    if (!names.insert(entry.name).second)
      throw FormatError(path + ": two tensors have the name '" + entry.name + "'. Rename one of them");
    const auto bytes = bytes_of(entry.dtype, entry.sizes);
    if (!bytes || stored_sizes(entry).size() > kMaxDims)
      throw FormatError(path + ": entry '" + entry.name + "': expected at most " + std::to_string(kMaxDims) +
                        " dims and fewer than 2^63 bytes, found sizes " + text_of(entry.sizes) +
                        ". Reshape the tensor before saving");
    entry.begin = end;
    entry.end = end += *bytes;
  }
}

std::string header_text(const Header& header) try {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  auto metadata = header.metadata;
  for (const auto& entry : header.entries)
    if (stored_as_pairs_of(entry.dtype)) metadata[std::string(kDtypeOf) + entry.name] = name_of(entry.dtype);
  if (!metadata.empty()) json["__metadata__"] = metadata;
  for (const auto& entry : header.entries)
    json[entry.name] = {{"dtype", name_of(stored_as_pairs_of(entry.dtype).value_or(entry.dtype))},
                        {"shape", stored_sizes(entry)},
                        {"data_offsets", {entry.begin, entry.end}}};
  auto text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length;
  for (size_t i = 0; i < kLengthBytes; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
} catch (const nlohmann::json::exception& error) {
  throw FormatError(std::string("expected names in UTF-8: ") + error.what());
}

}  // namespace fsdp::state
