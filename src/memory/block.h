#pragma once
/// \file
/// Memory that the library takes in one piece.

#include <c10/core/Allocator.h>

#include <cstddef>

namespace fsdp::memory {

/// Whether such a block is a mapping of its own: large ones on the CPU are.
bool is_mapped(c10::Device device, size_t bytes);

/// A mapping of private memory, zeros, in huge pages where the system has them. Throws c10::Error.
void* map_block(size_t bytes);
void unmap_block(void* address, size_t bytes) noexcept;

/// Memory of any content on `device`, whichever is the thread's current one: an allocator takes it from that.
c10::DataPtr allocate(c10::Device device, size_t bytes);

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

}  // namespace fsdp::memory
