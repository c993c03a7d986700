#pragma once
/// \file
/// A temporary folder for files of this process.

#include <filesystem>

namespace fsdp::report {

/// A new folder in TMPDIR or /tmp with an unpredictable name, which only this user may enter. The destructor removes it
/// with its contents.
class TemporaryFolder {
 public:
  /// Throws Error if the folder cannot be created.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::report
