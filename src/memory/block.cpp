#include "memory/block.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "memory/allocation_watch.h"

namespace fsdp::memory {

bool is_mapped(c10::Device device, size_t bytes) {
  // The general allocator keeps smaller blocks and has use for them in between.
  constexpr size_t kLeastBytes = size_t{10} << 20;
  return device.is_cpu() && bytes >= kLeastBytes;
}

void* map_block(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(address != MAP_FAILED, "[fsdp] no memory: ", bytes, " bytes could not be mapped (", std::strerror(errno),
              "). Use a smaller model or more ranks, or raise the limit on address space (ulimit -v).");
  madvise(address, bytes, MADV_HUGEPAGE);  // only a wish
  return address;
}

void return_free_pages() noexcept {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

void keep_free_pages() noexcept {
#ifdef __GLIBC__
  for (const char* limit : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"})
    if (std::getenv(limit) != nullptr) return;
  // Either ends the automatic choice of both. The first is the largest that is allowed.
  if (mallopt(M_MMAP_THRESHOLD, 32 << 20) != 0) mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
}

void unmap_block(void* address, size_t bytes) noexcept { munmap(address, bytes); }

c10::DataPtr allocate(c10::Device device, size_t bytes) {
  const c10::DeviceGuard guard(device);
  const OwnAllocation counted_elsewhere;
  return c10::GetAllocator(device.type())->allocate(bytes);
}

c10::DataPtr allocate_pinned(c10::DeviceType accelerator, size_t bytes) {
  return at::globalContext().getPinnedMemoryAllocator(accelerator)->allocate(bytes);
}

c10::DataPtr allocate_block(c10::Device device, size_t bytes) {
  if (!is_mapped(device, bytes)) return allocate(device, bytes);
  struct Mapped {
    void* address;
    size_t bytes;
  };
  auto mapped = std::make_unique<Mapped>(Mapped{map_block(bytes), bytes});
  void* address = mapped->address;
  return {address, mapped.release(),
          [](void* context) {
            const std::unique_ptr<Mapped> block(static_cast<Mapped*>(context));
            unmap_block(block->address, block->bytes);
          },
          device};
}

}  // namespace fsdp::memory
