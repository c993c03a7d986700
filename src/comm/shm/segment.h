#pragma once
/// \file
/// Anonymous memory that processes share: memfd_create(2), sized and sealed before anybody maps it.

#include <sys/types.h>

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

/// When a segment has its memory: from the start, so that using it never ends in SIGBUS, or page by page as it is used;
/// see take_pages.
enum class Paging : uint8_t { kAtOnce, kWhenUsed };

/// A segment of zeros that nobody can resize. Its name is known to this process's descriptors alone. Throws Obstacle.
Descriptor make_segment(const std::string& name, size_t bytes, Paging paging = Paging::kAtOnce);

/// The segment with this name that a process of this user has open; not open if that process has none or has ended.
/// Throws Obstacle.
Descriptor find_segment(pid_t process, const std::string& name);

/// Maps the segment into this process, or returns the mapping that the process has already, so that ranks which are
/// threads of one process use the same addresses. Throws Obstacle, also if it does not have `bytes`. Thread safe.
std::shared_ptr<std::byte> map_segment(const Descriptor& segment, std::optional<size_t> bytes = std::nullopt);

/// Takes the memory of a part of a segment now, so that using it does not end in SIGBUS. Throws Obstacle if there is
/// none. Does nothing before Linux 5.14.
void take_pages(std::byte* begin, size_t bytes);

/// The bytes that a control group still gives, none if it has no limit. `limit`, `used`, `stat`: the texts of its
/// memory.max, memory.current and memory.stat.
std::optional<uint64_t> left_by_limit(const std::string& limit, const std::string& used, const std::string& stat);

}  // namespace fsdp::shm
