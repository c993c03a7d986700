#pragma once
/// \file
/// Writes and reads files as a program without this library does, for comparison with checkpoints.

#include <cstddef>
#include <span>
#include <string>

namespace bench {

/// Writes a new file, and waits until the file and its name are on the disk. Throws std::runtime_error.
void write_plain(const std::string& path, std::span<const std::byte> bytes);

/// Fills `out` with the first bytes of a file. Throws std::runtime_error.
void read_plain(const std::string& path, std::span<std::byte> out);

/// Makes the system drop its cached pages of a file that is on the disk, so that the next reader reads from the disk.
/// Has no effect on files that are only in memory.
void forget_cached(const std::string& path);

}  // namespace bench
