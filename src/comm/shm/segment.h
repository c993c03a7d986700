#pragma once
/// \file
/// Anonymous memory that processes share: memfd_create(2), sized and sealed before anybody maps it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/posix/descriptor.h"

namespace fsdp::shm {

/// What keeps this machine from sharing memory, in one sentence.
class Obstacle : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A segment in this process' address space, unmapped at the end.
class Mapping {
 public:
  Mapping(const Descriptor& segment, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// A mapping of all of the segment: the one that this process has, if it has one, so that ranks which are threads of
/// one process use the same addresses. Thread safe.
std::shared_ptr<Mapping> map_segment(const Descriptor& segment, size_t bytes);

/// When a segment has its memory: from the start, so that using it never ends in SIGBUS, or page by page as it is used.
enum class Paging : uint8_t { kAtOnce, kWhenUsed };

/// A segment of zeros that nobody can resize. Throws Obstacle.
Descriptor make_segment(size_t bytes, Paging paging = Paging::kAtOnce);

/// The bytes that a control group still gives, none if it has no limit. `limit`, `used`, `stat`: the texts of its
/// memory.max, memory.current and memory.stat (version 1: memory.limit_in_bytes, memory.usage_in_bytes, memory.stat).
std::optional<uint64_t> left_by_limit(const std::string& limit, const std::string& used, const std::string& stat);

}  // namespace fsdp::shm
