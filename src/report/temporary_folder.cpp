#include "report/temporary_folder.h"

#include <fsdp/error.h>
#include <stdlib.h>

#include <cerrno>
#include <system_error>

#include "comm/posix/file.h"

namespace fsdp::report {

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  auto name = absolute_path((std::filesystem::temp_directory_path(error) / "fsdp-XXXXXX").string());
  if (!error && mkdtemp(name.data()) == nullptr) error.assign(errno, std::generic_category());
  if (error)
    throw Error("cannot create a folder for temporary files: " + error.message() +
                ". Set TMPDIR to a folder with room that this user can write to.");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fsdp::report
