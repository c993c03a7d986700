#include "output.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "comm/posix/descriptor.h"

namespace fsdprun {
namespace {

constexpr size_t kLongestPiece = 16 << 20;
constexpr size_t kLongestRemembered = 64 << 10;

}  // namespace

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  if (after_return_ && bytes.starts_with('\n')) {
    sink("\n", /*starts_line=*/false);
    bytes.remove_prefix(1);
  }
  if (!bytes.empty()) after_return_ = false;
  for (size_t end; (end = bytes.find_first_of("\r\n")) != std::string_view::npos;) {
    if (bytes.substr(end).starts_with("\r\n")) ++end;
    const auto line = bytes.substr(0, end + 1);
    bytes.remove_prefix(end + 1);
    after_return_ = bytes.empty() && line.back() == '\r';
    if (line != "\r" || !rest_.empty() || is_inside_line_) pass_on(line, sink);
    is_inside_line_ = false;
  }
  rest_ += bytes;
  if (rest_.size() <= kLongestPiece) return;
  pass_on("", sink);
  is_inside_line_ = true;
}

void LineSplitter::finish(const Sink& sink) {
  if (!rest_.empty() || is_inside_line_) pass_on("\n", sink);
  is_inside_line_ = false;
}

/// Passes on the unfinished line, followed by `end`.
void LineSplitter::pass_on(std::string_view end, const Sink& sink) {
  rest_ += end;
  sink(rest_, !is_inside_line_);
  rest_.clear();
}

RankStream::RankStream(fsdp::Descriptor pipe, Options options, Console& console)
    : pipe_(std::move(pipe)), options_(std::move(options)), console_(console) {}

bool RankStream::read_some() {
  std::array<char, 16384> buffer;
  const ssize_t count = read(pipe_.number(), buffer.data(), buffer.size());
  if (count < 0) return errno == EINTR;
  if (count == 0) {
    pipe_.close();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<size_t>(count));
  if (auto& [file, path] = options_.log; file.is_open()) {
    if (const int error = fsdp::write_all(file.number(), bytes)) {
      console_.note_lost(path, error);
      file.close();
    }
  }
  lines_.feed(bytes, [this](std::string_view piece, bool starts) { pass_on(piece, starts); });
  return true;
}

void RankStream::read_available() {
  constexpr int kFairShare = 16;  // A rank that prints without pause must not delay the others.
  for (int turn = 0; turn < kFairShare && descriptor() >= 0 && read_some(); ++turn) {
  }
}

void RankStream::finish() {
  constexpr int kMoreThanAPipeHolds = 128;  // There is a limit, because another process may still be writing.
  for (int turn = 0; turn < kMoreThanAPipeHolds && pipe_.is_open() && read_some(); ++turn) {
  }
  pipe_.close();
  lines_.finish([this](std::string_view piece, bool starts) { pass_on(piece, starts); });
}

void RankStream::pass_on(std::string_view piece, bool starts_line) {
  if (options_.stream == Console::Stream::kErr) remember(piece);
  if (options_.is_shown) {
    console_.write(options_.stream, this, options_.prefix, piece, starts_line);
  }
}

void RankStream::remember(std::string_view piece) {
  const size_t last = piece.find_last_not_of("\r\n");
  if (last == std::string_view::npos) return;
  last_lines_.add(piece.substr(0, std::min(last + 1, kLongestRemembered)));
}

}  // namespace fsdprun
