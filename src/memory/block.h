#pragma once
/// \file
/// How the library allocates large blocks of memory, among them blocks that lie in files.

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>
#include <string>

namespace fsdp::memory {

/// Allocates uninitialised memory on `device`. A device's allocator would use the thread's current device instead, so
/// this function makes `device` current meanwhile.
c10::DataPtr allocate(c10::Device device, size_t bytes);
/// Returns true while the calling thread is inside `allocate`.
bool allocates_for_library();

/// Allocates uninitialised memory for long-lived data, such as optimizer state. A large block on the CPU gets a mapping
/// (mmap) of its own: between the activations that malloc allocates and frees in each step, the block would leave holes
/// in the heap that nothing fits into.
c10::DataPtr allocate_block(c10::Device device, size_t bytes);

/// Returns malloc's free pages to the system (malloc_trim). The call walks the whole heap.
void return_free_pages() noexcept;

/// Makes malloc keep up to 128 MiB of free memory at the end of its heap; by default it keeps at most 64 MiB. A step
/// frees this memory, and without this setting the next step would fault it in again page by page. The setting holds
/// for the whole process and replaces limits that the program set by mallopt. Limits that the environment sets
/// (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES) stay, and the call then changes nothing.
void keep_free_pages() noexcept;

/// Hands out blocks and reuses them, e.g. for a group's gradients, which each backward allocates and zero_grad() frees.
/// Thread safety: one thread at a time may call `take`; any thread may give a block back.
class BlockPool {
 public:
  /// Makes a pool of memory on `device`. The pool keeps a large CPU block mapped when the block is given back: malloc
  /// would return it to the system and fault it in again page by page, or leave holes that nothing else fits into.
  /// While no user has the block, the system may take its pages (MADV_FREE), so the block counts as free.
  explicit BlockPool(c10::Device device);
  /// Makes a pool of `blocks` blocks of one size in a file without a name, which the system deletes when the pool and
  /// its last block are gone. The pages are file cache: when memory is short, the system writes them out and takes
  /// them, and it reads them again when they are used. The constructor reserves disk space for all blocks, so that no
  /// block can lack it later. Throws Error naming folder, bytes needed and bytes free.
  BlockPool(std::string folder, size_t block_bytes, size_t blocks);

  /// Returns an uninitialised block of `bytes` bytes. The block goes back to the pool when the pointer is destroyed,
  /// even if this object no longer exists. Several blocks may be in use at a time. If no block of the file is free or
  /// `bytes` exceeds their size, the new block lies in a file of its own.
  c10::DataPtr take(size_t bytes);

 private:
  struct Free;
  const c10::Device device_;
  std::string folder_;  // where the file lies; empty for a pool of memory
  std::shared_ptr<Free> free_;
};

}  // namespace fsdp::memory
