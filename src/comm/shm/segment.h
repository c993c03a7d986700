#pragma once
/// \file
/// Anonymous memory that processes share. It is made by memfd_create(2) and gets its size and seals before any process
/// maps it.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/posix/descriptor.h"

namespace fsdp::shm {

/// The reason why this machine cannot share memory, and what to do about it. The text has no period at its end.
class Obstacle : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// When a segment gets its memory. With kAtOnce all of it has memory from the start, so using it never ends in SIGBUS.
/// With kWhenUsed each page gets memory when it is used; see take_pages.
enum class Paging : uint8_t { kAtOnce, kWhenUsed };

/// Makes a segment of zeros that no process can resize. Its name appears only among this process's descriptors in
/// /proc. Throws Obstacle.
Descriptor make_segment(const std::string& name, size_t bytes, Paging paging = Paging::kAtOnce);

/// Opens the segment with this name that another process of this user has open. The result is not open if that process
/// has no such segment or has ended. Throws Obstacle.
Descriptor find_segment(pid_t process, const std::string& name);

/// Maps the segment into this process, or returns the process's existing mapping, so that ranks that are threads of one
/// process use the same addresses. Throws Obstacle if that fails or if the segment's size is not `bytes`. Thread-safe.
std::shared_ptr<std::byte> map_segment(const Descriptor& segment, std::optional<size_t> bytes = std::nullopt);

/// Takes memory for a part of a segment now, so that using the part does not end in SIGBUS. Throws Obstacle if there is
/// none. Does nothing before Linux 5.14.
void take_pages(std::byte* begin, size_t bytes);

/// Returns the bytes that a control group still allows; nullopt if it has no limit. `limit`, `used` and `stat` are the
/// contents of its memory.max, memory.current and memory.stat.
std::optional<uint64_t> left_by_limit(const std::string& limit, const std::string& used, const std::string& stat);

}  // namespace fsdp::shm
