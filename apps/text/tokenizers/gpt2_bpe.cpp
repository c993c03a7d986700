#include "text/tokenizers/gpt2_bpe.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <stdexcept>
#include <utility>

#include "text/tokenizers/gpt2_splitter.h"

namespace text {
namespace {

constexpr int kBytes = 256;

/// Returns true if GPT-2 spells the byte as the character with that code. It spells the other bytes, in their order, as
/// the characters from U+0100 on.
bool is_spelled_as_itself(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD); }

std::string utf8_of(int code) {  // `code` must be below 0x800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

uint64_t pair_of(int64_t left, int64_t right) {
  return static_cast<uint64_t>(left) << 32U | static_cast<uint64_t>(right);
}

/// Returns the lines of `text` without line ends.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

Gpt2Bpe::Gpt2Bpe(std::string_view merges) : bytes_(kBytes) {
  std::unordered_map<std::string, int64_t> numbers;  // each token's number, by GPT-2's spelling of the token
  const auto add_byte = [&](int byte, int spelled_as) {
    bytes_[static_cast<size_t>(byte)] = vocabulary_size();
    numbers.emplace(utf8_of(spelled_as), vocabulary_size());
    vocabulary_.emplace_back(1, static_cast<char>(byte));
  };
  int next_code = 0x100;
  for (int byte = 0; byte < kBytes; ++byte) {
    if (is_spelled_as_itself(byte)) add_byte(byte, byte);
  }
  for (int byte = 0; byte < kBytes; ++byte) {
    if (!is_spelled_as_itself(byte)) add_byte(byte, next_code++);
  }

  const auto lines = lines_of(merges);
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = lines[i];
    if (line.empty() || (i == 0 && line.starts_with("#version"))) continue;
    const size_t blank = line.find(' ');
    const auto left = numbers.find(std::string(line.substr(0, blank)));
    const auto right = blank == line.npos ? numbers.end() : numbers.find(std::string(line.substr(blank + 1)));
    if (left == numbers.end() || right == numbers.end()) {
      throw std::invalid_argument(
          "line " + std::to_string(i + 1) +
          " of the merges is not a pair of tokens, each of which is a byte or an earlier merge");
    }
    const auto [l, r] = std::pair(left->second, right->second);
    merges_.emplace(pair_of(l, r), vocabulary_size());
    numbers.emplace(left->first + right->first, vocabulary_size());
    vocabulary_.push_back(vocabulary_[static_cast<size_t>(l)] + vocabulary_[static_cast<size_t>(r)]);
  }
  if (merges_.empty()) throw std::invalid_argument("expected merges, found none");
  vocabulary_.emplace_back("<|endoftext|>");
}

Tokens Gpt2Bpe::encode_piece(std::string_view piece) const {
  // A linked list of the piece's tokens. Each merge shortens it.
  struct Part {
    int64_t token;
    size_t previous, next;
  };
  const size_t end = piece.size();
  std::vector<Part> parts;
  parts.reserve(end);
  for (size_t i = 0; i < end; ++i) parts.push_back({bytes_[static_cast<unsigned char>(piece[i])], i - 1, i + 1});

  // The merges that were possible when they were queued. The merge whose result has the lowest number comes first, and
  // among merges with equal results the leftmost.
  using Merge = std::pair<int64_t, size_t>;
  std::priority_queue<Merge, std::vector<Merge>, std::greater<>> queue;
  const auto merged_at = [&](size_t i) -> int64_t {
    if (i >= end || parts[i].next == end) return -1;
    const auto found = merges_.find(pair_of(parts[i].token, parts[parts[i].next].token));
    return found == merges_.end() ? -1 : found->second;
  };
  const auto offer = [&](size_t i) {
    if (const int64_t token = merged_at(i); token >= 0) queue.emplace(token, i);
  };
  constexpr int64_t kGone = -2;
  for (size_t i = 0; i < end; ++i) offer(i);
  while (!queue.empty()) {
    const auto [token, i] = queue.top();
    queue.pop();
    if (parts[i].token == kGone || merged_at(i) != token) continue;
    Part& gone = parts[parts[i].next];
    parts[i] = {token, parts[i].previous, gone.next};
    gone.token = kGone;
    if (parts[i].next < end) parts[parts[i].next].previous = i;
    offer(i);
    offer(parts[i].previous);
  }

  Tokens tokens;
  for (size_t i = 0; i < end; i = parts[i].next) tokens.push_back(parts[i].token);
  return tokens;
}

Tokens Gpt2Bpe::encode(std::string_view text) const {
  std::unordered_map<std::string_view, Tokens> known;
  Tokens tokens;
  while (!text.empty()) {
    const auto piece = text.substr(0, gpt2_piece(text));
    auto [found, is_new] = known.try_emplace(piece);
    if (is_new) found->second = encode_piece(piece);
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
    text.remove_prefix(piece.size());
  }
  return tokens;
}

std::string Gpt2Bpe::decode(std::span<const int64_t> tokens) const {
  std::string text;
  for (const int64_t token : tokens) text += vocabulary_.at(static_cast<size_t>(token));
  return text;
}

}  // namespace text
