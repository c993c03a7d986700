#pragma once
/// \file
/// Memory whose pages lie in a file.

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <string>

namespace fsdp::memory {

/// Blocks of one size in a file without a name, which goes with the last of them. Its pages are file cache: the system
/// writes them out and takes them when memory is short, and reads them again when they are used.
///
/// Thread safety: `take` from one thread at a time, giving back from any.
class DiskStore {
 public:
  /// The disk gives the room for all blocks now, so that none of them can lack it later. Throws Error naming folder,
  /// bytes needed and bytes free.
  DiskStore(std::string folder, size_t block_bytes, size_t blocks);
  /// A block of any content, of at least so many bytes; it goes back when the pointer goes, also after this object. In
  /// a file of its own if all blocks are out or too small.
  c10::DataPtr take(size_t bytes);

 private:
  struct File;
  std::string folder_;
  std::shared_ptr<File> file_;
};

}  // namespace fsdp::memory
