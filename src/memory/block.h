#pragma once
/// \file
/// Memory that the library takes in one piece, once or step after step, also in files.

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <string>

namespace fsdp::memory {

/// Memory of any content on `device`, whichever is the thread's current one: an allocator takes it from that.
c10::DataPtr allocate(c10::Device device, size_t bytes);
/// Whether the calling thread is in `allocate`.
bool allocates_for_library();

/// Memory of any content for something that stays, e.g. optimizer state. A large block on the CPU is a mapping of its
/// own: among the activations that come and go in the general allocator's memory it would leave holes that nothing
/// fits into.
c10::DataPtr allocate_block(c10::Device device, size_t bytes);

/// Memory of any content on the host, which `accelerator` copies from and to beside the host.
c10::DataPtr allocate_pinned(c10::DeviceType accelerator, size_t bytes);

/// Gives pages that the general allocator has no use for at the moment back to the system. It walks the whole heap.
void return_free_pages() noexcept;

/// From now on the general allocator keeps up to 128 MiB at the end of its heap, which a step frees and the next one
/// would fault in again page by page; on its own it keeps at most 64 MiB. For the whole process, over limits that the
/// program set by mallopt; those of the environment (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES)
/// stay.
void keep_free_pages() noexcept;

/// Hands out blocks again and again, e.g. for a group's gradients, which come with each backward and go with
/// zero_grad(). Thread safety: `take` from one thread at a time, giving back from any.
class BlockPool {
 public:
  /// From the general allocator such a block would go back to the system and come again page by page, or leave holes
  /// that nothing else fits into. A large one on the CPU stays mapped here; while nobody has it the system may take its
  /// pages (MADV_FREE), so it counts as free.
  explicit BlockPool(c10::Device device);
  /// Blocks of one size in a file without a name, which goes with the last of them. Its pages are file cache: the
  /// system writes them out and takes them when memory is short, and reads them again when they are used. The disk
  /// gives the room for all blocks now, so that none of them can lack it later. Throws Error naming folder, bytes
  /// needed and bytes free.
  BlockPool(std::string folder, size_t block_bytes, size_t blocks);

  /// A block of any content; it goes back when the pointer goes, also after this object. Several may be out at a time.
  /// In a file of its own if all blocks of the file are out or too small.
  c10::DataPtr take(size_t bytes);

 private:
  struct Free;
  const c10::Device device_;
  std::string folder_;  // of the file; empty: memory
  std::shared_ptr<Free> free_;
};

}  // namespace fsdp::memory
