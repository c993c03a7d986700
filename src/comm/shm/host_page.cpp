#include "comm/shm/host_page.h"

#include <algorithm>
#include <cstring>

namespace fsdp::shm {

void SharedText::set(std::string_view text) {
  std::array<char, sizeof(words_)> padded{};
  text.copy(padded.data(), padded.size() - 1);
  for (size_t i = 0; i < words_.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, padded.data() + i * sizeof(word), sizeof(word));
    words_[i].store(word, std::memory_order_relaxed);
    if (i * sizeof(word) > text.size()) break;
  }
}

std::string SharedText::get() const {
  std::array<char, sizeof(words_)> text{};
  for (size_t i = 0; i < words_.size(); ++i) {
    const uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
  }
  text.back() = '\0';
  return text.data();
}

void SharedVerdict::set(const Verdict& verdict) {
  kind = static_cast<int32_t>(verdict.kind);
  rank = verdict.rank;
  length = static_cast<uint32_t>(verdict.text.copy(text.data(), text.size()));
}

Verdict SharedVerdict::get() const {
  return {static_cast<Verdict::Kind>(kind), rank, std::string(text.data(), length)};
}

}  // namespace fsdp::shm
