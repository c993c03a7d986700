#include "console.h"

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <condition_variable>
#include <cstdint>
#include <iostream>
#include <mutex>
#include <streambuf>
#include <thread>
#include <utility>

#include "comm/posix/file.h"
#include "comm/posix/descriptor.h"

namespace fsdprun {
namespace {

constexpr size_t kMostWaiting = 1 << 20;
constexpr std::string_view kEraseToEndOfLine = "\x1b[K";

bool are_one_file(int a, int b) {
  struct stat first{};
  struct stat second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// The buffer of a stream, such as std::cerr, whose text goes to an Outlet. While the Outlet has no room, text is lost.
class ToOutlet : public std::streambuf {
 public:
  explicit ToOutlet(std::shared_ptr<Outlet> outlet) : outlet_(std::move(outlet)) {}

 protected:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    if (outlet_->has_room()) outlet_->write({text, static_cast<size_t>(count)});
    return count;
  }
  int_type overflow(int_type character) override {
    const char text = traits_type::to_char_type(character);
    xsputn(&text, 1);
    return traits_type::not_eof(character);
  }

 private:
  const std::shared_ptr<Outlet> outlet_;
};

}  // namespace

/// The state of an Outlet. It is shared with the thread, which may outlive the Outlet.
struct Outlet::State {
  State(int its_file, std::shared_ptr<const fsdp::Descriptor> its_news) : file(its_file), news(std::move(its_news)) {}

  const int file;
  const std::shared_ptr<const fsdp::Descriptor> news;
  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;
  size_t being_written = 0, written = 0;
  int error = 0;
  bool is_over = false;

  void run() {
    constexpr size_t kAtOnce = 4096;  // A pipe takes this much at once; note() reports progress after each piece.
    for (std::string text; take(text);) {
      int failure = 0;
      for (size_t done = 0; done < text.size() && failure == 0; done += kAtOnce) {
        const auto piece = std::string_view(text).substr(done, kAtOnce);
        failure = fsdp::write_all(file, piece);
        note(piece.size(), failure);
      }
    }
  }

  /// Waits for text to write. Returns false if there will be no more text.
  bool take(std::string& text) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return is_over || !waiting.empty(); });
    text = std::exchange(waiting, {});
    being_written = text.size();
    return !text.empty();
  }

  void note(size_t count, int failure) {
    {
      std::lock_guard lock(mutex);
      written += count;
      being_written -= count;
      if (failure != 0) {
        error = failure;
        being_written = 0;
        waiting.clear();
      }
    }
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = ::write(news->number(), &one, sizeof(one));
  }
};

Outlet::Outlet(int file, std::shared_ptr<const fsdp::Descriptor> news)
    : state_(std::make_shared<State>(file, std::move(news))) {
  std::thread([state = state_] { state->run(); }).detach();
}

Outlet::~Outlet() {
  std::lock_guard lock(state_->mutex);
  state_->is_over = true;
  state_->changed.notify_all();
}

void Outlet::write(std::string_view text) {
  std::lock_guard lock(state_->mutex);
  if (state_->error != 0) return;
  state_->waiting += text;
  state_->changed.notify_all();
}

bool Outlet::has_room() const {
  std::lock_guard lock(state_->mutex);
  return state_->waiting.size() + state_->being_written < kMostWaiting;
}

int Outlet::error() const {
  std::lock_guard lock(state_->mutex);
  return state_->error;
}

size_t Outlet::written() const {
  std::lock_guard lock(state_->mutex);
  return state_->written;
}

bool Outlet::is_idle() const {
  std::lock_guard lock(state_->mutex);
  return state_->waiting.empty() && state_->being_written == 0;
}

Console::Console()
    : is_terminal_(isatty(STDOUT_FILENO) != 0),
      news_(std::make_shared<const fsdp::Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))),
      out_(std::make_shared<Page>(Page{std::make_shared<Outlet>(STDOUT_FILENO, news_)})),
      err_(are_one_file(STDOUT_FILENO, STDERR_FILENO)
               ? out_
               : std::make_shared<Page>(Page{std::make_shared<Outlet>(STDERR_FILENO, news_)})) {
  // This object is never deleted, because LibTorch's threads log until the process exits.
  std::cerr.rdbuf(new ToOutlet(err_->outlet));
}

void Console::write(Stream stream, const void* source, std::string_view prefix, std::string_view piece,
                    bool starts_line) {
  auto& [outlet, unfinished] = page(stream);
  std::string text;
  if (unfinished != nullptr && unfinished != source) text += '\n';
  if (overwritable_ != nullptr && overwritable_ != source && is_terminal_) {
    text += kEraseToEndOfLine;
  }
  const bool goes_on_elsewhere = piece != "\n" && unfinished != source;  // Another rank interrupted the line.
  if (starts_line || goes_on_elsewhere) text += prefix;
  text += piece;
  overwritable_ = piece.ends_with('\r') ? source : nullptr;
  unfinished = piece.ends_with('\n') || piece.ends_with('\r') ? nullptr : source;
  outlet->write(text);
}

void Console::say(const std::string& message) {
  const bool breaks_in = std::exchange(err_->unfinished, nullptr) != nullptr;
  err_->outlet->write((breaks_in ? "\nfsdprun: " : "fsdprun: ") + message + "\n");
}

void Console::note_lost(const std::string& path, int error) {
  has_lost_ = true;
  say("cannot write " + path + ": " + fsdp::why_and_what_to_do(error) +
      ". What the rank prints from now on is missing from this file");
}

void Console::take_news() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(news_->number(), &count, sizeof(count));
}

}  // namespace fsdprun
