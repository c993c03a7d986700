#pragma once
/// \file
/// Handles the output of ranks: splits it into lines, adds prefixes, shows it, and writes it to files.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/posix/descriptor.h"
#include "console.h"
#include "last_lines.h"

namespace fsdprun {

/// Splits a stream of bytes into pieces that end with "\n", "\r" or "\r\n". A "\r" ends a piece because progress lines
/// end or begin with it and have no "\n". A line of more than 16 MiB is passed on in several pieces, of which only the
/// last one has the line's end.
class LineSplitter {
 public:
  /// Receives the pieces. `starts_line` is false for a "\n" whose "\r" was passed on before, and for a piece that
  /// continues a line.
  using Sink = std::function<void(std::string_view piece, bool starts_line)>;

  void feed(std::string_view bytes, const Sink& sink);
  /// Passes on the rest of the last line, and ends it with a "\n".
  void finish(const Sink& sink);

 private:
  void pass_on(std::string_view end, const Sink& sink);

  std::string rest_;
  bool after_return_ = false, is_inside_line_ = false;
};

/// A file that receives every byte of a rank's output until a write fails. If `file` is not open, there is no log file.
struct LogFile {
  fsdp::Descriptor file;
  std::string path;
};

/// One standard stream of one rank.
class RankStream {
 public:
  struct Options {
    Console::Stream stream;
    std::string prefix;
    bool is_shown = true;
    LogFile log = {};
  };

  RankStream(fsdp::Descriptor pipe, Options options, Console& console);

  /// The pipe from which to read; -1 at the end of the stream, and while the console has no room.
  int descriptor() const { return has_room() ? pipe_.number() : -1; }
  /// Reads and passes on the output that has arrived, without waiting.
  void read_available();
  /// Passes on the output that has arrived and closes the pipe, even if another process can still write to it.
  void finish();
  std::vector<std::string> last_lines() const { return last_lines_.lines(); }

 private:
  bool has_room() const { return !options_.is_shown || console_.has_room(options_.stream); }
  bool read_some();
  void pass_on(std::string_view piece, bool starts_line);
  void remember(std::string_view piece);

  fsdp::Descriptor pipe_;
  Options options_;
  Console& console_;
  LineSplitter lines_;
  LastLines last_lines_;
};

}  // namespace fsdprun
