#pragma once
/// \file
/// The files of --redirects and --tee.

#include <string>

#include "comm/posix/descriptor.h"
#include "console.h"
#include "flags.h"
#include "output.h"

namespace fsdprun {

/// LOG_DIR/RUN_XXXXXX/attempt_A/LOCAL_RANK/stdout.log and stderr.log, as torchrun lays them out. The folder RUN_XXXXXX
/// is new for each job and only this user's, and so is all that lies in it. No link is followed from LOG_DIR on, and
/// what is below it is reached from there: whoever may write elsewhere cannot lead the files astray.
class LogFiles {
 public:
  /// Makes the job's folder if a flag asks for files. Throws Exit if it cannot be made.
  LogFiles(const Flags& flags, Console& console);

  LogFile open_stdout(int attempt, int local_rank) const;
  LogFile open_stderr(int attempt, int local_rank) const;

 private:
  LogFile open(int attempt, int local_rank, const std::string& name) const;

  StreamChoice redirects_, tee_;
  std::string path_;  // for messages
  fsdp::Descriptor folder_;
};

}  // namespace fsdprun
