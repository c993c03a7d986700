#include "memory/block.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "comm/core/mutex.h"

namespace fsdp::memory {
namespace {

// Whether such a block is a mapping of its own: large ones on the CPU are.
bool is_mapped(c10::Device device, size_t bytes) {
  // The general allocator keeps smaller blocks and has use for them in between.
  constexpr size_t kLeastBytes = size_t{10} << 20;
  return device.is_cpu() && bytes >= kLeastBytes;
}

// A mapping of private memory, zeros, in huge pages where the system has them. Throws c10::Error.
void* map_block(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(address != MAP_FAILED, "[fsdp] no memory: ", bytes, " bytes could not be mapped (", std::strerror(errno),
              "). Use a smaller model or more ranks, or raise the limit on address space (ulimit -v).");
  madvise(address, bytes, MADV_HUGEPAGE);  // only a wish
  return address;
}

void unmap_block(void* address, size_t bytes) noexcept { munmap(address, bytes); }

}  // namespace

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

c10::DataPtr allocate_pinned(c10::DeviceType accelerator, size_t bytes) {
  return at::globalContext().getPinnedMemoryAllocator(accelerator)->allocate(bytes);
}

c10::DataPtr allocate_block(c10::Device device, size_t bytes) {
  if (!is_mapped(device, bytes)) return allocate(device, bytes);
  return c10::InefficientStdFunctionContext::makeDataPtr(
      map_block(bytes), [bytes](void* address) { unmap_block(address, bytes); }, device);
}

// The block that nobody has, if there is one.
struct ReusedBlock::Spare {
  Mutex mutex;
  void* address FSDP_GUARDED_BY(mutex) = nullptr;
  size_t bytes FSDP_GUARDED_BY(mutex) = 0;

  ~Spare() {
    if (address != nullptr) unmap_block(address, bytes);
  }

  void* take(size_t wanted) {
    const MutexLock lock(mutex);
    return bytes == wanted ? std::exchange(address, nullptr) : nullptr;
  }

  void give_back(void* block, size_t block_bytes) {
    const MutexLock lock(mutex);
    if (address != nullptr) {
      unmap_block(block, block_bytes);
      return;
    }
    madvise(block, block_bytes, MADV_FREE);
    address = block;
    bytes = block_bytes;
  }
};

c10::DataPtr ReusedBlock::take(size_t bytes) {
  if (!is_mapped(device_, bytes)) return allocate_block(device_, bytes);
  if (!spare_) spare_ = std::make_shared<Spare>();
  void* address = spare_->take(bytes);
  if (address == nullptr) address = map_block(bytes);
  return c10::InefficientStdFunctionContext::makeDataPtr(
      address, [spare = spare_, bytes](void* block) { spare->give_back(block, bytes); }, device_);
}

}  // namespace fsdp::memory
