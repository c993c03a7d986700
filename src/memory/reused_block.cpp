#include "memory/reused_block.h"

#include <sys/mman.h>

#include <mutex>
#include <utility>

#include "memory/block.h"

namespace fsdp::memory {

// The block that nobody has, if there is one.
struct ReusedBlock::Spare {
  std::mutex mutex;
  void* address = nullptr;
  size_t bytes = 0;

  ~Spare() {
    if (address != nullptr) unmap_block(address, bytes);
  }

  void* take(size_t wanted) {
    std::lock_guard lock(mutex);
    return bytes == wanted ? std::exchange(address, nullptr) : nullptr;
  }

  void give_back(void* block, size_t block_bytes) {
    std::lock_guard lock(mutex);
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
  struct Loan {
    std::shared_ptr<Spare> spare;
    void* address;
    size_t bytes;
  };
  return {address, new Loan{spare_, address, bytes},
          [](void* context) {
            const std::unique_ptr<Loan> loan(static_cast<Loan*>(context));
            loan->spare->give_back(loan->address, loan->bytes);
          },
          device_};
}

}  // namespace fsdp::memory
