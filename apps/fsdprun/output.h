#pragma once
/// \file
/// What the ranks print: cut into lines, marked, shown and written to files.

#include <deque>
#include <functional>
#include <string>
#include <string_view>

#include "comm/descriptor.h"

namespace fsdprun {

/// Cuts a stream of bytes into pieces that end with "\n", "\r" or "\r\n". "\r" ends a piece because
/// progress lines end with it (or begin with it) and wait for no "\n".
class LineSplitter {
 public:
  /// `starts_line` is false for a "\n" that came after its "\r" had gone out.
  using Sink = std::function<void(std::string_view piece, bool starts_line)>;

  void feed(std::string_view bytes, const Sink& sink);
  /// The rest, completed by a "\n".
  void finish(const Sink& sink);

 private:
  std::string rest_;
  bool after_return_ = false;
};

/// The launcher's stdout and stderr.
class Console {
 public:
  enum class Stream { kOut = STDOUT_FILENO, kErr = STDERR_FILENO };

  Console();
  /// Writes one piece as a whole. `source` tells the ranks apart.
  void write(Stream stream, const void* source, std::string_view prefix, std::string_view piece, bool starts_line);
  /// Whoever read the output is gone.
  bool is_closed() const { return is_closed_; }

 private:
  bool is_terminal_;
  bool is_closed_ = false;
  // Who wrote the line that the cursor stands at the start of, having ended it with "\r".
  const void* overwritable_ = nullptr;
};

/// One standard stream of one rank.
class RankStream {
 public:
  struct Options {
    Console::Stream stream;
    std::string prefix;
    bool is_shown = true;
    /// Gets every byte as it came. Not open: no file.
    fsdp::Descriptor file;
  };

  RankStream(fsdp::Descriptor pipe, Options options, Console& console);

  /// -1 at the end of the stream.
  int descriptor() const { return pipe_.number(); }
  /// Passes on what is there, without waiting.
  void read_available();
  /// Passes on what is there and closes the pipe, also if somebody could still write to it.
  void finish();
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  bool read_some();
  void pass_on(std::string_view piece, bool starts_line);
  void remember(std::string_view piece);

  fsdp::Descriptor pipe_;
  Options options_;
  Console& console_;
  LineSplitter lines_;
  std::deque<std::string> last_lines_;
};

}  // namespace fsdprun
