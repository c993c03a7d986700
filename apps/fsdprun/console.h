#pragma once
/// \file
/// The launcher's stdout and stderr, whose readers may be slow, stopped or gone.

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdprun {

/// A file that a thread of its own writes, so that nobody else waits for whoever reads it.
class Outlet {
 public:
  /// `news`, an eventfd, becomes readable when there is room again and when writing fails.
  Outlet(int file, std::shared_ptr<const fsdp::Descriptor> news);
  /// Leaves the thread behind if it waits for a reader.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  /// Never waits.
  void write(std::string_view text);
  /// Whether less waits to be written than is worth keeping here.
  bool has_room() const;
  /// Why nothing more is written, as errno says it: whoever read is gone, or the disk is full. 0: all is well.
  int error() const;
  /// Bytes written so far; nothing waits if `is_idle`.
  size_t written() const;
  bool is_idle() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// What is written to one stream arrives in order, and in order with the other stream if both are one file.
class Console {
 public:
  enum class Stream { kOut = STDOUT_FILENO, kErr = STDERR_FILENO };

  /// Starts threads. From then on std::cerr, where LibTorch logs, waits for nobody either.
  Console();
  /// Writes one piece as a whole. `source` tells the ranks apart: one that breaks into another's line ends it. Never
  /// waits.
  void write(Stream stream, const void* source, std::string_view prefix, std::string_view piece, bool starts_line);
  /// Writes "fsdprun: `message`" to stderr. Never waits.
  void say(const std::string& message);

  /// Says that a file no longer gets what a rank prints; `error` as errno has it.
  void note_lost(const std::string& path, int error);
  /// Whether any file does not.
  bool has_lost() const { return has_lost_; }

  bool has_room(Stream stream) const { return page(stream).outlet->has_room(); }
  /// Of the stream that has one, as an Outlet's.
  int error() const { return out_->outlet->error() != 0 ? out_->outlet->error() : err_->outlet->error(); }
  /// Readable when there may be room again, or an error; `take_news` makes it unreadable.
  int descriptor() const { return news_->number(); }
  void take_news();

  bool is_idle() const { return out_->outlet->is_idle() && err_->outlet->is_idle(); }
  /// Bytes written so far.
  size_t written() const { return out_->outlet->written() + err_->outlet->written(); }

 private:
  /// A file that is written to.
  struct Page {
    std::shared_ptr<Outlet> outlet;
    /// The rank stream whose line has no end yet; null if the last piece ended its line.
    const void* unfinished = nullptr;
  };
  Page& page(Stream stream) const { return stream == Stream::kOut ? *out_ : *err_; }

  bool is_terminal_;
  std::shared_ptr<const fsdp::Descriptor> news_;
  std::shared_ptr<Page> out_, err_;  // one, if both are one file
  // Who wrote the line that the cursor stands at the start of, having ended it with "\r".
  const void* overwritable_ = nullptr;
  bool has_lost_ = false;
};

}  // namespace fsdprun
