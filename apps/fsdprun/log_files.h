#pragma once
/// \file
/// The files of --redirects and --tee.

#include <filesystem>

#include "comm/descriptor.h"
#include "console.h"
#include "flags.h"

namespace fsdprun {

/// LOG_DIR/RUN_XXXXXX/attempt_A/LOCAL_RANK/stdout.log and stderr.log, as torchrun lays them out. The
/// folder RUN_XXXXXX is new for each job.
class LogFiles {
 public:
  /// Makes the job's folder if a flag asks for files. Throws Exit if it cannot be made.
  LogFiles(const Flags& flags, Console& console);

  fsdp::Descriptor open_stdout(int attempt, int local_rank) const;
  fsdp::Descriptor open_stderr(int attempt, int local_rank) const;

 private:
  fsdp::Descriptor open(int attempt, int local_rank, const char* name) const;

  StreamChoice redirects_, tee_;
  std::filesystem::path folder_;
};

}  // namespace fsdprun
