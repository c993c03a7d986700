#pragma once
/// \file
/// The log files of --redirects and --tee.

#include <string>

#include "comm/posix/descriptor.h"
#include "console.h"
#include "flags.h"
#include "output.h"

namespace fsdprun {

/// Makes the files LOG_DIR/RUN_XXXXXX/attempt_A/LOCAL_RANK/stdout.log and stderr.log, which is torchrun's layout. The
/// folder RUN_XXXXXX is new for each job, and only this user may access it and its files. LOG_DIR and everything below
/// it must not be symbolic links, and each folder is opened relative to its parent. Other users therefore cannot
/// redirect the files.
class LogFiles {
 public:
  /// Makes the folder of the job if a flag asks for log files. Throws Exit if the folder cannot be made.
  LogFiles(const Flags& flags, Console& console);

  LogFile open_stdout(int attempt, int local_rank) const;
  LogFile open_stderr(int attempt, int local_rank) const;

 private:
  LogFile open(int attempt, int local_rank, const std::string& name) const;

  StreamChoice redirects_, tee_;
  std::string path_;  // only for messages
  fsdp::Descriptor folder_;
};

}  // namespace fsdprun
