#include "program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "exit.h"

namespace fsdprun {
namespace {

enum class Found { kNothing, kFolder, kFile, kProgram };

Found look_at(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return Found::kNothing;
  if (S_ISDIR(status.st_mode)) return Found::kFolder;
  return access(path.c_str(), X_OK) == 0 ? Found::kProgram : Found::kFile;
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') == std::string::npos) {
    const char* folders = std::getenv("PATH");
    std::istringstream path(folders == nullptr ? "/usr/bin:/bin" : folders);
    for (std::string folder; std::getline(path, folder, ':');) {
      const std::string file = (folder.empty() ? "." : folder) + "/" + name;
      if (look_at(file) == Found::kProgram) return file;
    }
    const std::string here =
        look_at("./" + name) == Found::kNothing ? "" : "; to start the file in this folder, write ./" + name;
    throw Exit(kNotFound, "the program '" + name + "' is not in any folder of PATH" + here);
  }
  switch (look_at(name)) {
    case Found::kProgram:
      return name;
    case Found::kNothing:
      throw Exit(kNotFound, "there is no program '" + name + "'");
    case Found::kFolder:
      throw Exit(kNotExecutable, "'" + name + "' is a folder, not a program");
    case Found::kFile:
      break;
  }
  throw Exit(kNotExecutable, "'" + name +
                                 "' is not executable: make the file executable with chmod +x, or name the program "
                                 "that runs it, e.g. python3 " +
                                 name);
}

}  // namespace fsdprun
