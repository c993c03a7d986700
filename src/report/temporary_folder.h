#pragma once
/// \file
/// A temporary folder for files of this process.

#include <filesystem>

namespace fsdp::report {

/// A new folder in TMPDIR or /tmp. It has an unpredictable name, and only this user may enter it. The destructor
/// removes the folder with its contents.
class TemporaryFolder {
 public:
  /// Creates the folder. Throws Error if that fails.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::report
