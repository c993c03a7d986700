#pragma once
/// \file
/// Writes to the launcher's stdout and stderr, even if their readers are slow, stopped or gone.

#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "comm/posix/descriptor.h"

namespace fsdprun {

/// Writes to a file in a separate thread, so other threads never wait for the reader of the file.
class Outlet {
 public:
  /// `news` is an eventfd. It becomes readable when text has been written and when writing fails.
  Outlet(int file, std::shared_ptr<const fsdp::Descriptor> news);
  /// Does not join the thread, which may be waiting for a reader.
  ~Outlet();
  Outlet(const Outlet&) = delete;
  Outlet& operator=(const Outlet&) = delete;

  /// Appends `text` to the text that the thread writes. Never waits.
  void write(std::string_view text);
  /// True if less than 1 MiB of text waits to be written. Otherwise callers should keep their text for now.
  bool has_room() const;
  /// The errno of the first write that failed, because the reader is gone or the disk is full; 0 if none failed.
  /// Nothing more is written after a failure.
  int error() const;
  /// Number of bytes that the thread has written.
  size_t written() const;
  /// True if no text waits to be written.
  bool is_idle() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Writes to stdout and stderr. Text of one stream arrives in order. If both streams are one file, text of both arrives
/// in the order of the calls.
class Console {
 public:
  enum class Stream { kOut = STDOUT_FILENO, kErr = STDERR_FILENO };

  /// Starts the threads. Also redirects std::cerr, to which LibTorch logs, to an Outlet, so that logging never waits.
  Console();
  /// Writes `piece`, after `prefix` where a line starts. `source` identifies the rank's stream. If the line of another
  /// source is unfinished, a line break ends that line first. Never waits.
  void write(Stream stream, const void* source, std::string_view prefix, std::string_view piece, bool starts_line);
  /// Writes "fsdprun: `message`" to stderr. Never waits.
  void say(const std::string& message);

  /// Prints that a file no longer receives what a rank prints. `error` is an errno value.
  void note_lost(const std::string& path, int error);
  /// True if note_lost was called.
  bool has_lost() const { return has_lost_; }

  bool has_room(Stream stream) const { return page(stream).outlet->has_room(); }
  /// The errno of the stream whose writes fail, as in Outlet::error; 0 if there is none.
  int error() const { return out_->outlet->error() != 0 ? out_->outlet->error() : err_->outlet->error(); }
  /// A descriptor that is readable, until `take_news` is called, if there may be room again or an error happened.
  int descriptor() const { return news_->number(); }
  void take_news();

  bool is_idle() const { return out_->outlet->is_idle() && err_->outlet->is_idle(); }
  /// Number of bytes that were written so far to both streams.
  size_t written() const { return out_->outlet->written() + err_->outlet->written(); }

 private:
  /// A file to which the console writes.
  struct Page {
    std::shared_ptr<Outlet> outlet;
    /// The source of the unfinished line; null if the last piece ended its line.
    const void* unfinished = nullptr;
  };
  Page& page(Stream stream) const { return stream == Stream::kOut ? *out_ : *err_; }

  bool is_terminal_;
  std::shared_ptr<const fsdp::Descriptor> news_;
  std::shared_ptr<Page> out_, err_;  // the same object if both streams are one file
  // The source that ended its line with "\r". The cursor is at the start of this line.
  const void* overwritable_ = nullptr;
  bool has_lost_ = false;
};

}  // namespace fsdprun
