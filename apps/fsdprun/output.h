#pragma once
/// \file
/// What the ranks print: cut into lines, marked, shown and written to files.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/posix/descriptor.h"
#include "console.h"
#include "last_lines.h"

namespace fsdprun {

/// Cuts a stream of bytes into pieces that end with "\n", "\r" or "\r\n". "\r" ends a piece because
/// progress lines end with it (or begin with it) and wait for no "\n". A line of many megabytes comes in several
/// pieces, of which only the last one has its end.
class LineSplitter {
 public:
  /// `starts_line` is false for a "\n" that came after its "\r" had gone out, and for a piece that goes on with a line.
  using Sink = std::function<void(std::string_view piece, bool starts_line)>;

  void feed(std::string_view bytes, const Sink& sink);
  /// The rest, completed by a "\n".
  void finish(const Sink& sink);

 private:
  void pass_on(std::string_view end, const Sink& sink);

  std::string rest_;
  bool after_return_ = false, is_inside_line_ = false;
};

/// Gets every byte that a rank prints as it came, until one cannot be written. Not open: there is no file.
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

  /// -1 at the end of the stream, and while the console has no room for what would be read.
  int descriptor() const { return has_room() ? pipe_.number() : -1; }
  /// Passes on what is there, without waiting.
  void read_available();
  /// Passes on what is there and closes the pipe, also if somebody could still write to it.
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
