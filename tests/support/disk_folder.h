#pragma once
/// \file
/// A folder for the files of param groups that are kept on disk.

#include <filesystem>
#include <stdexcept>
#include <string>

#include <stdlib.h>

namespace fsdp::test {

/// Makes a folder, and removes it with its contents in the destructor.
class DiskFolder {
 public:
  DiskFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "fsdp_disk_XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no folder for the test: " + path);
    path_ = path;
  }
  ~DiskFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace fsdp::test
