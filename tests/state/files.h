#pragma once
/// \file
/// Files and checkpoints for tests of their formats.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "state/format/checkpoint_folder.h"
#include "support/error_text.h"

namespace fsdp::state {

using test::text_of_error;

/// A new folder, which the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    auto pattern = ::testing::TempDir() + "fsdp_state_XXXXXX";
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string bytes_in_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}
inline void put_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Returns `count` consecutive floats, beginning with `first`.
inline std::vector<float> floats(size_t count, float first) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

/// Writes a checkpoint of step `step` as two ranks do: 'weight' [5, 3] in two parts, and 'bias' [2] in one.
inline void write_small_checkpoint(const std::string& folder, int64_t step, std::optional<int64_t> keep = std::nullopt,
                                   const std::string& extra = R"({"epoch": 3})") {
  const FolderLock lock(folder);
  const auto path = begin_step(folder, step, lock);
  Manifest manifest{.step = step, .world_size = 2, .versions = {{"fsdp", "0.1.0"}}, .extra = extra};
  auto& weight = manifest.model["weight"] = {Dtype::kFloat32, {5, 3}, {}};
  auto& bias = manifest.model["bias"] = {Dtype::kFloat32, {2}, {}};
  const auto write = [&](const std::string& name, const std::vector<Entry>& entries,
                         const std::vector<std::vector<float>>& values) {
    SafetensorsWriter writer(path + "/" + name, entries, {{"format", "pt"}});
    for (const auto& some : values) writer.write(std::as_bytes(std::span(some)));
    const auto written = writer.finish();
    manifest.files[name] = {written.bytes, written.header_checksum};
    return written.checksums;
  };
  const auto first = 100 * static_cast<float>(step);
  const std::string files[] = {"model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"};
  auto checksums = write(files[0], {{"weight", Dtype::kFloat32, {3, 3}}}, {floats(9, first)});
  weight.parts.push_back({files[0], {0, 0}, {3, 3}, checksums["weight"]});
  checksums = write(files[1], {{"weight", Dtype::kFloat32, {2, 3}}, {"bias", Dtype::kFloat32, {2}}},
                    {floats(6, first + 9), floats(2, -first)});
  weight.parts.push_back({files[1], {3, 0}, {2, 3}, checksums["weight"]});
  bias.parts.push_back({files[1], {0}, {2}, checksums["bias"]});
  name_step(folder, manifest, lock);
  keep_newest(folder, step, keep, lock);
}

}  // namespace fsdp::state
