#pragma once
/// \file
/// Files as a program without this library writes and reads them: what checkpoints are measured against.

#include <cstddef>
#include <span>
#include <string>

namespace bench {

/// Writes a new file and waits until the disk has it and its name. Throws std::runtime_error.
void write_plain(const std::string& path, std::span<const std::byte> bytes);

/// Fills `out` with the first bytes of a file. Throws std::runtime_error.
void read_plain(const std::string& path, std::span<std::byte> out);

/// Lets the system forget what it keeps of a file that is on the disk, so that who reads it next reads the disk. Has no
/// effect where the file lies in memory alone.
void forget_cached(const std::string& path);

}  // namespace bench
