#include "rewrite.h"

#include <fsdp/version.h>

#include <cstdio>
#include <vector>

#include "numbers.h"
#include "progress.h"
#include "state/format/format_error.h"
#include "state/format/sharding_info.h"

namespace ckpt {
namespace {

using namespace fsdp::state;

// The state that is common to all files of a new checkpoint.
struct Rewriting {
  Source& source;
  std::string path;
  int ranks = 1;
  Progress progress;
  Manifest manifest;
};

std::string name_of_file(const char* section, int rank, int ranks) {
  char name[60];
  std::snprintf(name, sizeof name, "%s-%05d-of-%05d.safetensors", section, rank, ranks);
  return name;
}

// Returns the first row of `rank`'s share, which is rows * rank / ranks, without overflow.
int64_t first_row_of(int64_t rows, int rank, int ranks) { return rows / ranks * rank + rows % ranks * rank / ranks; }

// Writes `rank`'s share of each tensor's rows to one file.
void write_share(Rewriting& to, const std::string& file, const TensorRecords& tensors, int rank,
                 TensorRecords& records) {
  std::vector<Entry> entries;
  std::map<std::string, std::vector<int64_t>> offsets;
  for (const auto& [name, tensor] : tensors) {
    records.try_emplace(name, TensorRecord{tensor.dtype, tensor.sizes, {}});
    const auto rows = tensor.sizes.empty() ? 1 : tensor.sizes[0];
    const auto begin = first_row_of(rows, rank, to.ranks), end = first_row_of(rows, rank + 1, to.ranks);
    if (begin == end) continue;
    auto sizes = tensor.sizes;
    auto& first = offsets[name] = std::vector<int64_t>(sizes.size());
    if (!sizes.empty()) {
      first[0] = begin;
      sizes[0] = end - begin;
    }
    entries.push_back({name, tensor.dtype, std::move(sizes)});
  }
  if (entries.empty()) return;
  SafetensorsWriter writer(to.path + "/" + file, entries, sharding_info(entries, offsets));
  const auto order = writer.entries();
  for (const auto& entry : order) {
    const auto& tensor = tensors.at(entry.name);
    const auto elements = tensor.elements_of({file, offsets.at(entry.name), entry.sizes, {}});
    for_each_piece(to.source, entry.name, tensor, elements, [&](Bytes bytes) {
      writer.write(bytes);
      to.progress.add(bytes.size());
    });
  }
  auto written = writer.finish();
  to.manifest.files[file] = {written.bytes, written.header_checksum};
  for (const auto& entry : order)
    records.at(entry.name)
        .parts.push_back({file, offsets.at(entry.name), entry.sizes, std::move(written.checksums.at(entry.name))});
}

// Throws unless the step is at least that of the newest checkpoint in the folder. Training would resume from that
// checkpoint and not from one with a smaller step.
void require_newest(const std::string& folder, int64_t step) {
  if (checkpoint_names(folder).empty()) return;
  const auto newest = read_manifest(find_checkpoint(folder)).step;
  if (step < newest)
    throw FormatError(folder + ": training would resume from the newest checkpoint in this folder, which has step " +
                      std::to_string(newest) + ", and not from the new one, which has step " + std::to_string(step) +
                      ". Name a different folder, or a larger step with --step");
}

}  // namespace

Written export_to(Source& source, const std::string& path, std::optional<Dtype> dtype) {
  std::vector<Entry> entries;
  const auto& tensors = source.manifest().model;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, dtype && is_float(tensor.dtype) ? *dtype : tensor.dtype, tensor.sizes});
  Progress progress(bytes_in(tensors));
  fsdp::remove_leftovers(path);
  SafetensorsWriter writer(path, std::move(entries), {{"format", "pt"}});
  const auto order = writer.entries();
  for (const auto& entry : order) {
    const auto& tensor = tensors.at(entry.name);
    for_each_piece(source, entry.name, tensor, {0, tensor.numel()}, [&](Bytes bytes) {
      writer.write(convert(bytes, tensor.dtype, entry.dtype));
      progress.add(bytes.size());
    });
  }
  return {path, tensors.size(), writer.finish().bytes};
}

Written reshard_to(Source& source, const std::string& folder, int ranks, std::optional<int64_t> step) {
  const auto& old = source.manifest();
  auto training = old.training;
  // Other ranks cannot use a rank's random state.
  if (ranks != old.world_size)
    std::erase_if(training, [](const auto& tensor) { return tensor.first.starts_with("random."); });
  Rewriting to{source, "", ranks, Progress(bytes_in(old.model) + bytes_in(training)), Manifest{}};
  to.manifest.step = step.value_or(old.step);
  to.manifest.world_size = ranks;
  to.manifest.versions = old.versions;
  to.manifest.versions["fsdp"] = FSDP_VERSION;
  to.manifest.optimizer = old.optimizer;
  to.manifest.extra = old.extra;
  to.manifest.states = old.states;
  const FolderLock lock(folder);
  require_newest(folder, to.manifest.step);
  to.path = begin_step(folder, to.manifest.step, lock);
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      write_share(to, name_of_file("model", rank, ranks), old.model, rank, to.manifest.model);
      write_share(to, name_of_file("training", rank, ranks), training, rank, to.manifest.training);
    }
    name_step(folder, to.manifest, lock);
    keep_newest(folder, to.manifest.step, std::nullopt, lock);
  } catch (...) {
    abandon_step(folder, to.manifest.step, lock);
    throw;
  }
  Written written{folder + "/" + name_of_step(to.manifest.step), old.model.size() + training.size()};
  for (const auto& [name, file] : to.manifest.files) written.bytes += file.bytes;
  return written;
}

}  // namespace ckpt
