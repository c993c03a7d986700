#include "report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "progress.h"
#include "state/format/format_error.h"
#include "state/format/sizes.h"
#include "table.h"

namespace ckpt {
namespace {

using namespace fsdp::state;
using json = nlohmann::ordered_json;

json json_of(const TensorRecords& tensors) {
  json all = json::object();
  for (const auto& [name, tensor] : tensors)
    all[name] = {{"dtype", name_of(tensor.dtype)},
                 {"shape", tensor.sizes},
                 {"bytes", bytes_in(tensor)},
                 {"parts", tensor.parts.size()}};
  return all;
}

void print_tensors(const char* title, const TensorRecords& tensors) {
  std::cout << title << ": " << tensors.size() << " tensors, " << text_of_bytes(bytes_in(tensors)) << '\n';
  if (tensors.empty()) return;
  std::vector<std::vector<std::string>> rows{{"name", "dtype", "shape", "size", "files"}};
  for (const auto& [name, tensor] : tensors)
    rows.push_back({name, std::string(name_of(tensor.dtype)), text_of(tensor.sizes), text_of_bytes(bytes_in(tensor)),
                    // A safetensors file that is not part of a checkpoint has no parts.
                    std::to_string(std::max<size_t>(tensor.parts.size(), 1))});
  print_table(rows);
}

struct Checkpoints {
  std::vector<std::string> complete;
  /// The names of folders that interrupted saves have left.
  std::vector<std::string> incomplete;
};

// Returns the checkpoint at `path`, or all checkpoints in the folder `path`.
Checkpoints checkpoints_at(const std::string& path) {
  if (std::filesystem::is_regular_file(path))
    throw FormatError(path +
                      ": expected a checkpoint or the folder of a run's checkpoints, found a file, which has no "
                      "checksums. Compare the file with another one: fsdp-ckpt diff");
  if (!std::filesystem::is_directory(path) || checkpoint_names(path) == std::vector<std::string>{"."})
    return {{find_checkpoint(path)}, {}};  // find_checkpoint throws an error that says what is missing.
  Checkpoints found{{}, incomplete_names(path)};
  for (const auto step : complete_steps(path))
    found.complete.push_back(places_of(path + "/" + name_of_step(step)).front());
  if (found.complete.empty() && found.incomplete.empty()) find_checkpoint(path);  // find_checkpoint throws.
  return found;
}

uint64_t bytes_of_tensors(const std::string& checkpoint) {
  uint64_t bytes = 0;
  std::error_code ignored;  // problems_of reports the error.
  for (const auto& file : std::filesystem::directory_iterator(checkpoint, ignored))
    if (file.path().extension() == ".safetensors") bytes += file.file_size(ignored);
  return bytes;
}

}  // namespace

void print_info(const Source& source, bool as_json) {
  const auto& manifest = source.manifest();
  if (as_json) {
    json states = json::object();
    for (const auto& [name, state] : manifest.states) states[name] = json::parse(state);
    std::cout << json{{"step", manifest.step},
                      {"world_size", manifest.world_size},
                      {"versions", manifest.versions},
                      {"extra", json::parse(manifest.extra)},
                      {"states", std::move(states)},
                      {"optimizer", json::parse(manifest.optimizer).value("kind", json())},
                      {"model", json_of(manifest.model)},
                      {"training", json_of(manifest.training)}}
                     .dump(1)
              << '\n';
    return;
  }
  if (manifest.world_size > 0) {  // A world size of 0 means that the source is a file.
    std::cout << "step " << manifest.step << ", saved by " << manifest.world_size << " ranks";
    for (const auto& [name, version] : manifest.versions) std::cout << ", " << name << ' ' << version;
    std::cout << "\nextra: " << manifest.extra << '\n';
    for (const auto& [name, state] : manifest.states) std::cout << "state of " << name << ": " << state << '\n';
  }
  print_tensors("model", manifest.model);
  if (manifest.world_size > 0) print_tensors("training", manifest.training);
}

void print_written(const Written& written, bool as_json) {
  if (as_json)
    std::cout << json{{"path", written.path}, {"tensors", written.tensors}, {"bytes", written.bytes}}.dump(1) << '\n';
  else
    std::cout << written.path << ": " << written.tensors << " tensors, " << text_of_bytes(written.bytes) << '\n';
}

bool print_differences(const std::vector<Difference>& differences, bool as_json) {
  json all = json::object();
  std::vector<std::vector<std::string>> rows{{"name", "largest difference"}};
  for (const auto& [name, misfit, largest] : differences) {
    // JSON cannot represent infinity.
    all[name] = !misfit.empty()       ? json(misfit)
                : std::isinf(largest) ? json("one of the two tensors has a value that is not finite")
                                      : json(largest);
    if (all[name] != 0) rows.push_back({name, all[name].is_string() ? all[name].get<std::string>() : all[name].dump()});
  }
  const bool is_equal = rows.size() == 1;
  if (as_json) {
    std::cout << all.dump(1) << '\n';
    return is_equal;
  }
  if (!is_equal) print_table(rows);
  std::cout << differences.size() - (rows.size() - 1) << " of " << differences.size() << " tensors are equal\n";
  return is_equal;
}

bool print_problems(const std::string& path, bool as_json) {
  const auto [complete, incomplete] = checkpoints_at(path);
  bool is_well = !complete.empty();
  json all = {{"checkpoints", json::object()}, {"incomplete", incomplete}};
  for (const auto& checkpoint : complete) {
    Progress progress(bytes_of_tensors(checkpoint));
    const auto problems = problems_of(checkpoint, [&](uint64_t bytes) { progress.add(bytes); });
    is_well = is_well && problems.empty();
    all["checkpoints"][checkpoint] = problems;
    if (as_json) continue;
    std::cout << checkpoint << ": " << (problems.empty() ? "complete, all bytes are as they were written" : "damaged")
              << '\n';
    for (const auto& problem : problems) std::cout << "  " << problem << '\n';
  }
  if (as_json)
    std::cout << all.dump(1) << '\n';
  else
    for (const auto& name : incomplete)
      std::cout << path << "/" << name << ": incomplete, because its save was interrupted or is still running\n";
  return is_well;
}

}  // namespace ckpt
