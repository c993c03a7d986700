#include "state/checkpoint_rows.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostSentBytes = uint64_t{16} << 20;  // at a time

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(std::move(line));
  return lines;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

std::string path_of(const std::string& folder, const std::string& name) {
  return name == "." ? folder : folder + "/" + name;
}

// The names that any rank sees, in the order of rank 0, then of the others.
std::vector<std::string> names_of_any(const std::string& folder, const Ranks& ranks, const std::string& operation) {
  std::vector<std::string> names;
  for (const auto& text : ranks.together(operation, [&] { return text_of(checkpoint_names(folder)); }))
    for (auto& name : lines_of(text))
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  return names;
}

// A checkpoint as the ranks see it.
struct Candidate {
  std::string path;
  // By rank: the manifest's checksum, empty where there is none, and by the manifest's files whether they are there.
  struct View {
    std::string checksum, files;
  };
  std::vector<View> views;
  bool has_hosts = false;

  // The lowest rank with a manifest: that of another save under the same name counts as none.
  size_t holder() const {
    return static_cast<size_t>(std::ranges::find_if(views, [](const View& v) { return !v.checksum.empty(); }) -
                               views.begin());
  }
  bool has(size_t rank) const { return views[rank].checksum == views[holder()].checksum; }
  bool sees(size_t rank, size_t file) const { return has(rank) && views[rank].files[file] == '1'; }
  std::optional<int> lowest_that_sees(size_t file) const {
    for (size_t rank = 0; rank < views.size(); ++rank)
      if (sees(rank, file)) return static_cast<int>(rank);
    return std::nullopt;
  }
  bool is_complete() const {
    for (size_t file = 0; file < views[holder()].files.size(); ++file)
      if (!lowest_that_sees(file)) return false;
    return true;
  }
};

// Checksum, whether files have hosts, and which ones are here.
std::string view_of(const std::string& path) {
  if (!fs::exists(path + "/" + kManifestName)) return {};
  const auto text = read_manifest_text(path);
  const auto manifest = parse_manifest(text, path + "/" + kManifestName);
  std::string files;
  bool has_hosts = false;
  for (const auto& [name, file] : manifest.files) {
    files += fs::exists(path + "/" + name) ? '1' : '0';
    has_hosts = has_hosts || !file.host.empty();
  }
  return text_of({hex_of(checksum_of(std::as_bytes(std::span(text)))), has_hosts ? "hosts" : "", files});
}

Candidate look_at(const std::string& path, const Ranks& ranks, const std::string& operation) {
  Candidate candidate{.path = path, .views = {}};
  for (const auto& text : ranks.together(operation, [&] { return view_of(path); })) {
    auto lines = lines_of(text);
    lines.resize(3);
    candidate.has_hosts = candidate.has_hosts || !lines[1].empty();
    candidate.views.push_back({std::move(lines[0]), std::move(lines[2])});
  }
  return candidate;
}

// Of those that were saved to several disks, a newer one may not be on all of them: the save was interrupted.
std::optional<Candidate> choose(const std::string& folder, const Ranks& ranks, const std::string& operation) {
  std::optional<Candidate> first;
  for (const auto& name : names_of_any(folder, ranks, operation)) {
    auto candidate = look_at(path_of(folder, name), ranks, operation);
    if (candidate.holder() == candidate.views.size()) continue;  // removed meanwhile
    if (!candidate.has_hosts || candidate.is_complete()) {
      if (first && ranks.rank() == 0)
        TORCH_WARN(ranks.where(operation), first->path, " is not on the disks of all hosts, so ", candidate.path,
                   " is loaded");
      return candidate;
    }
    if (!first) first = std::move(candidate);
  }
  return first;
}

// Of this rank's disk, or as the lowest rank that has it says.
Manifest manifest_of(const Candidate& candidate, const Ranks& ranks, const std::string& operation) {
  const auto holder = candidate.holder();
  const auto own = static_cast<size_t>(ranks.rank());
  bool all_have_it = true;
  for (size_t rank = 0; rank < candidate.views.size(); ++rank) all_have_it = all_have_it && candidate.has(rank);
  if (all_have_it) return read_manifest(candidate.path);
  const auto text = ranks.together(
      operation, [&] { return own == holder ? read_manifest_text(candidate.path) : std::string(); })[holder];
  return parse_manifest(text, candidate.path + "/" + kManifestName);
}

}  // namespace

std::unique_ptr<CheckpointRows> CheckpointRows::find(const std::string& folder, const Ranks& ranks,
                                                     const std::string& operation) {
  const auto candidate = choose(folder, ranks, operation);
  if (!candidate) return nullptr;
  auto manifest = manifest_of(*candidate, ranks, operation);
  Sights sights;
  size_t file = 0;
  for (const auto& [name, record] : manifest.files) {
    auto& sight = sights[name];
    sight.lowest = candidate->lowest_that_sees(file);
    for (size_t rank = 0; rank < candidate->views.size(); ++rank)
      sight.all = sight.all && candidate->sees(rank, file);
    sight.own = candidate->sees(static_cast<size_t>(ranks.rank()), file++);
  }
  return std::unique_ptr<CheckpointRows>(
      new CheckpointRows({candidate->path, std::move(manifest)}, std::move(sights), ranks, operation));
}

CheckpointRows::CheckpointRows(CheckpointReader reader, Sights sights, const Ranks& ranks, std::string operation)
    : reader_(std::move(reader)),
      sights_(std::move(sights)),
      ranks_(ranks),
      operation_(std::move(operation)),
      is_alike_(std::ranges::all_of(sights_, [](const auto& file) { return file.second.all || !file.second.lowest; })) {
}

void CheckpointRows::announce(const std::vector<Wanted>& wanted) {
  if (is_alike_) return;
  // Numbers in the order of the manifest, which all ranks have.
  std::vector<const TensorRecord*> all;
  for (const auto* records : {&manifest().model, &manifest().training})
    for (const auto& [name, record] : *records) all.push_back(&record);
  std::unordered_set<const TensorRecord*> lacking;
  for (const auto& [tensor, rows] : wanted)
    for (const auto& part : tensor->parts)
      if (part.first_row < rows.first + rows.count && rows.first < part.first_row + part.rows &&
          !sights_.at(part.file).own)
        lacking.insert(tensor);
  const auto texts = ranks_.together(operation_, [&] {
    std::vector<std::string> numbers;
    for (size_t i = 0; i < all.size(); ++i)
      if (lacking.contains(all[i])) numbers.push_back(std::to_string(i));
    return text_of(numbers);
  });
  for (const auto& text : texts)
    for (const auto& number : lines_of(text)) sent_.insert(all.at(std::stoul(number)));
}

void CheckpointRows::read(const std::string& name, const TensorRecord& tensor, layout::RowRange rows,
                          std::span<std::byte> out) {
  if (is_alike_) return reader_.read_rows(name, tensor, rows.first, rows.count, out);
  if (!is_sent(tensor)) return keep_error([&] { reader_.read_rows(name, tensor, rows.first, rows.count, out); });
  for (const auto& part : tensor.parts) send(name, tensor, part, rows, out);
}

// A part of a tensor from who sees it to all, of whom each takes the rows that it wants.
void CheckpointRows::send(const std::string& name, const TensorRecord& tensor, const TensorPart& part,
                          layout::RowRange rows, std::span<std::byte> out) {
  const auto bytes_per_row = tensor.bytes_per_row();
  const auto step = static_cast<int64_t>(std::max<uint64_t>(kMostSentBytes / std::max<uint64_t>(bytes_per_row, 1), 1));
  const auto root = sights_.at(part.file).lowest;
  for (int64_t first = part.first_row; first < part.first_row + part.rows; first += step) {
    const auto count = std::min(step, part.first_row + part.rows - first);
    const auto piece = at::empty({count * static_cast<int64_t>(bytes_per_row)}, at::kByte);
    const std::span bytes(static_cast<std::byte*>(piece.mutable_data_ptr()), piece.nbytes());
    if (!root || *root == ranks_.rank())
      keep_error([&] { reader_.read_rows(name, tensor, first, count, bytes); });  // which says that nobody has it
    if (root) ranks_.broadcast(piece, *root, operation_);
    const auto begin = std::max(first, rows.first), end = std::min(first + count, rows.first + rows.count);
    if (begin >= end) continue;
    std::memcpy(out.data() + static_cast<uint64_t>(begin - rows.first) * bytes_per_row,
                bytes.data() + static_cast<uint64_t>(begin - first) * bytes_per_row,
                static_cast<uint64_t>(end - begin) * bytes_per_row);
  }
}

// The first one counts.
void CheckpointRows::keep_error(const auto& action) {
  if (!error_) try {
      action();
    } catch (...) {
      error_ = std::current_exception();
    }
}

void CheckpointRows::finish() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace fsdp::state
