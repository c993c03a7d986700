#pragma once
/// \file
/// A folder for files that this process alone uses.

#include <filesystem>

namespace fsdp::report {

/// A new folder in TMPDIR or /tmp that only this user may enter, with a name that nobody can foresee. It is removed
/// with everything in it when the object is destroyed.
class TemporaryFolder {
 public:
  /// Throws Error if there cannot be one.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::report
