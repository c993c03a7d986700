#include "state/checkpoint_rows.h"

#include <c10/util/Exception.h>
#include <fsdp/error.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "comm/core/text.h"
#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "state/sent_elements.h"

namespace fsdp::state {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  TextReader stream(text);
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

// Returns the names of the checkpoints that any rank sees. The names that rank 0 sees come first, in its order.
std::vector<std::string> names_of_any(const std::string& folder, const Ranks& ranks) {
  std::vector<std::string> names;
  for (const auto& text : ranks.together([&] { return text_of(checkpoint_names(folder)); }))
    for (auto& name : lines_of(text))
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  return names;
}

// A checkpoint that this rank sees at one path.
struct Seen {
  std::string path, manifest, checksum;
  // One character for each file of the manifest: '1' if this rank sees the file, otherwise '0'.
  std::string files = {};
  bool has_hosts = false;
};

std::vector<Seen> look_here(const std::string& checkpoint) {
  std::vector<Seen> places;
  for (const auto& path : places_of(checkpoint)) {
    const auto text = read_manifest_text(path);
    auto& place = places.emplace_back(Seen{path, text, hex_of(checksum_of(std::as_bytes(std::span(text))))});
    for (const auto& [name, file] : parse_manifest(text, path + "/" + kManifestName).files) {
      place.files += fs::exists(path + "/" + name) ? '1' : '0';
      place.has_hosts = place.has_hosts || !file.host.empty();
    }
  }
  return places;
}

// A checkpoint that some ranks see, possibly at different paths. The checksum of its manifest identifies it.
struct Candidate {
  std::string checksum;
  // The path and the text of the manifest on this rank. The text is empty if this rank does not have the manifest.
  std::string path, manifest = {};
  // Seen::files of each rank, or nullopt for a rank that does not have the manifest.
  std::vector<std::optional<std::string>> files;
  bool has_hosts = false;

  bool has(size_t rank) const { return files[rank].has_value(); }
  bool sees(size_t rank, size_t file) const { return has(rank) && (*files[rank])[file] == '1'; }
  size_t lowest_that_has() const {
    return static_cast<size_t>(std::ranges::find_if(files, [](const auto& of) { return of.has_value(); }) -
                               files.begin());
  }
  std::optional<int> lowest_that_sees(size_t file) const {
    for (size_t rank = 0; rank < files.size(); ++rank)
      if (sees(rank, file)) return static_cast<int>(rank);
    return std::nullopt;
  }
  bool is_complete() const {
    for (size_t file = 0; file < files[lowest_that_has()]->size(); ++file)
      if (!lowest_that_sees(file)) return false;
    return true;
  }
};

// Returns all checkpoints that ranks have under one name. There are two if a save of an existing step was interrupted
// when only some disks had the new checkpoint.
std::vector<Candidate> look_at(const std::string& checkpoint, const Ranks& ranks) {
  std::vector<Seen> own;
  const auto texts = ranks.together([&] {
    own = look_here(checkpoint);
    std::vector<std::string> lines;
    for (const auto& [path, manifest, checksum, files, has_hosts] : own)
      lines.insert(lines.end(), {checksum, has_hosts ? "hosts" : "", files});
    return text_of(lines);
  });
  std::vector<Candidate> candidates;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto lines = lines_of(texts[rank]);
    for (size_t line = 0; line + 2 < lines.size(); line += 3) {
      auto known = std::ranges::find(candidates, lines[line], &Candidate::checksum);
      if (known == candidates.end())
        known = candidates.insert(known, Candidate{.checksum = lines[line],
                                                   .path = checkpoint,
                                                   .files = std::vector<std::optional<std::string>>(texts.size())});
      known->files[rank] = lines[line + 2];
      known->has_hosts = known->has_hosts || !lines[line + 1].empty();
    }
  }
  for (auto& place : own) {
    const auto candidate = std::ranges::find(candidates, place.checksum, &Candidate::checksum);
    candidate->path = place.path;
    candidate->manifest = std::move(place.manifest);
  }
  return candidates;
}

// Returns the newest checkpoint of which the ranks together see all files. Skips newer checkpoints that are missing on
// some disks because the save to several disks was interrupted. A checkpoint that was saved to one disk is never
// skipped: if its files are missing, reading it throws.
std::optional<Candidate> choose(const std::string& folder, const Ranks& ranks) {
  std::optional<Candidate> first;
  const auto names = names_of_any(folder, ranks);
  for (const auto& name : names)
    for (auto& candidate : look_at(path_of(folder, name), ranks)) {
      if (!candidate.has_hosts || candidate.is_complete()) {
        if (first && ranks.rank() == 0)
          TORCH_WARN(ranks.where(), first->path, " is not complete on the disks of all hosts, so ", candidate.path,
                     " is loaded");
        return std::move(candidate);
      }
      if (!first) first = std::move(candidate);
    }
  if (!first && !names.empty()) throw Error(ranks.where() + folder + kChanged);
  return first;
}

// Returns the manifest. If some ranks lack the manifest, the lowest rank that has it sends it to all ranks.
Manifest manifest_of(const Candidate& candidate, const Ranks& ranks) {
  auto text = candidate.manifest;
  if (std::ranges::any_of(candidate.files, [](const auto& of) { return !of; })) {
    const auto holder = candidate.lowest_that_has();
    auto texts = ranks.together([&] {
      return static_cast<size_t>(ranks.rank()) == holder ? candidate.manifest : std::string();
    });
    text = std::move(texts[holder]);
  }
  return parse_manifest(text, candidate.path + "/" + kManifestName);
}

}  // namespace

std::unique_ptr<CheckpointRows> CheckpointRows::find(const std::string& folder, const Ranks& ranks) {
  const auto candidate = choose(folder, ranks);
  if (!candidate) return nullptr;
  auto manifest = manifest_of(*candidate, ranks);
  Sights sights;
  size_t file = 0;
  for (const auto& [name, record] : manifest.files) {
    auto& sight = sights[name];
    sight.lowest = candidate->lowest_that_sees(file);
    for (size_t rank = 0; rank < candidate->files.size(); ++rank)
      sight.all = sight.all && candidate->sees(rank, file);
    sight.own = candidate->sees(static_cast<size_t>(ranks.rank()), file++);
  }
  return std::unique_ptr<CheckpointRows>(
      new CheckpointRows({candidate->path, std::move(manifest)}, std::move(sights), ranks));
}

CheckpointRows::CheckpointRows(CheckpointReader reader, Sights sights, const Ranks& ranks)
    : reader_(std::move(reader)),
      sights_(std::move(sights)),
      ranks_(ranks),
      is_alike_(std::ranges::all_of(sights_, [](const auto& file) { return file.second.all || !file.second.lowest; })) {
}

void CheckpointRows::announce(const std::vector<Wanted>& wanted) {
  if (is_alike_) return;
  // Tensors are numbered in the order of the manifest, which all ranks have.
  std::vector<const TensorRecord*> all;
  for (const auto* records : {&manifest().model, &manifest().training})
    for (const auto& [name, record] : *records) all.push_back(&record);
  std::unordered_set<const TensorRecord*> lacking;
  for (const auto& [tensor, elements] : wanted)
    for (const auto& part : tensor->parts)
      if (overlap(tensor->elements_of(part), elements).count > 0 && !sights_.at(part.file).own) lacking.insert(tensor);
  const auto texts = ranks_.together([&] {
    std::vector<std::string> numbers;
    for (size_t i = 0; i < all.size(); ++i)
      if (lacking.contains(all[i])) numbers.push_back(std::to_string(i));
    return text_of(numbers);
  });
  for (const auto& text : texts)
    for (const auto& number : lines_of(text)) sent_.insert(all.at(std::stoul(number)));
}

void CheckpointRows::read(const std::string& name, const TensorRecord& tensor, ElementRange elements,
                          std::span<std::byte> out) {
  if (is_alike_) return reader_.read(name, tensor, elements, out);
  if (!is_sent(tensor)) return error_.run([&] { reader_.read(name, tensor, elements, out); });
  for (const auto& part : tensor.parts) send(name, tensor, part, elements, out);
}

// The lowest rank that sees the part's file sends the part to all ranks. Each rank copies the elements that it needs.
void CheckpointRows::send(const std::string& name, const TensorRecord& tensor, const TensorPart& part,
                          ElementRange elements, std::span<std::byte> out) {
  const auto root = sights_.at(part.file).lowest;
  const auto of_part = tensor.elements_of(part);
  const auto read = [&](ElementRange some, std::span<std::byte> bytes) {
    error_.run([&] { reader_.read(name, tensor, some, bytes); });
  };
  if (!root && of_part.count > 0) {  // no rank has the file; the read fails and reports that
    std::vector<std::byte> element(bytes_of(tensor.dtype));
    return read({of_part.first, 1}, element);
  }
  send_elements({name, of_part, bytes_of(tensor.dtype), root.value_or(0), read}, elements, out, ranks_);
}

}  // namespace fsdp::state
