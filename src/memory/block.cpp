#include "memory/block.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <fcntl.h>
#include <fsdp/error.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/core/mutex.h"
#include "comm/core/text.h"
#include "comm/posix/file.h"

namespace fsdp::memory {
namespace {

thread_local bool is_allocating = false;

// Returns true if the block is large and on the CPU, so that it gets a mapping of its own.
bool is_mapped(c10::Device device, size_t bytes) {
  // malloc keeps smaller blocks when they are freed, and other allocations can use them meanwhile.
  constexpr size_t kLeastBytes = size_t{10} << 20;
  return device.is_cpu() && bytes >= kLeastBytes;
}

// Maps private memory, filled with zeros, in huge pages where the system has them. Throws c10::Error.
char* map_block(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(address != MAP_FAILED, "[fsdp] cannot allocate ", bytes, " bytes of memory (", std::strerror(errno),
              "). Use a smaller model or more ranks, or raise the limit on address space (ulimit -v).");
  madvise(address, bytes, MADV_HUGEPAGE);  // the system may ignore this advice
  return static_cast<char*>(address);
}

// Opens a new file without a name in `folder`. Some file systems do not support O_TMPFILE; the function then creates a
// named file and unlinks it.
int open_nameless(const std::string& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string path = folder + "/fsdp.XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) unlink(path.c_str());
  return named;
}

[[noreturn]] void refuse(const std::string& folder, size_t bytes, const char* what, int error) {
  struct statvfs disk{};
  const bool is_known = statvfs(folder.c_str(), &disk) == 0;
  throw Error(str_cat("DiskOffloadPolicy::folder '", folder, "': ", bytes,
                      " bytes are needed for rows, gradients and optimizer state, ",
                      is_known ? str_cat(uint64_t{disk.f_bavail} * disk.f_frsize) : "unknown", " bytes are free, and ",
                      what, " failed (", std::strerror(error),
                      "). Choose a folder with more room, use more ranks, keep some groups in memory, or raise the "
                      "limit on files (ulimit -f)"));
}

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
  // Either call ends malloc's automatic choice of both thresholds. 32 MiB is the largest M_MMAP_THRESHOLD allowed.
  if (mallopt(M_MMAP_THRESHOLD, 32 << 20) != 0) mallopt(M_TRIM_THRESHOLD, 128 << 20);
#endif
}

bool allocates_for_library() { return is_allocating; }

c10::DataPtr allocate(c10::Device device, size_t bytes) {
  const c10::DeviceGuard guard(device);
  is_allocating = true;
  const auto is_over = c10::make_scope_exit([] { is_allocating = false; });
  return c10::GetAllocator(device.type())->allocate(bytes);
}

c10::DataPtr allocate_block(c10::Device device, size_t bytes) {
  if (!is_mapped(device, bytes)) return allocate(device, bytes);
  return c10::InefficientStdFunctionContext::makeDataPtr(
      map_block(bytes), [bytes](void* address) { munmap(address, bytes); }, device);
}

// The blocks that no user has. A pool in a file keeps all of them; a pool of memory keeps at most one.
struct BlockPool::Free {
  int file = -1;
  char* in_file = nullptr;  // address at which the file is mapped
  size_t file_bytes = 0;
  Mutex mutex;
  std::vector<char*> blocks FSDP_GUARDED_BY(mutex);
  size_t block_bytes FSDP_GUARDED_BY(mutex) = 0;

  ~Free() {
    if (in_file != nullptr) munmap(in_file, file_bytes);
    if (file >= 0) close(file);
    for (auto* block : blocks)
      if (file < 0) munmap(block, block_bytes);
  }

  char* take(size_t bytes) {
    const MutexLock lock(mutex);
    if (blocks.empty() || (file < 0 ? bytes != block_bytes : bytes > block_bytes)) return nullptr;
    auto* block = blocks.back();
    blocks.pop_back();
    return block;
  }

  void give_back(char* block, size_t bytes) noexcept {
    const MutexLock lock(mutex);
    if (file >= 0) {
      // Zeroing the range spares the system from writing out values that nobody needs; the disk space stays reserved.
      fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, block - in_file, static_cast<off_t>(block_bytes));
    } else if (!blocks.empty()) {
      munmap(block, bytes);
      return;
    } else {
      madvise(block, bytes, MADV_FREE);
      block_bytes = bytes;
    }
    blocks.push_back(block);  // cannot throw in this noexcept function: the vector has had this many elements
  }
};

BlockPool::BlockPool(c10::Device device) : device_(device), free_(std::make_shared<Free>()) {}

BlockPool::BlockPool(std::string folder, size_t block_bytes, size_t blocks) : BlockPool(c10::kCPU) {
  folder_ = std::move(folder);
  const MutexLock lock(free_->mutex);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t size = free_->block_bytes = std::max(page, (block_bytes + page - 1) / page * page);
  const size_t bytes = free_->file_bytes = size * blocks;
  const int file = free_->file = open_nameless(folder_);
  if (file < 0) refuse(folder_, bytes, "making a file", errno);
  if (const int error = set_file_size(file, bytes, /*now=*/true)) refuse(folder_, bytes, "reserving the space", error);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) refuse(folder_, bytes, "mapping the file", errno);
  free_->in_file = static_cast<char*>(mapped);
  for (size_t i = blocks; i > 0; --i) free_->blocks.push_back(free_->in_file + (i - 1) * size);
}

c10::DataPtr BlockPool::take(size_t bytes) {
  const bool is_in_file = !folder_.empty();
  if (!is_in_file && !is_mapped(device_, bytes)) return allocate_block(device_, bytes);
  auto* block = free_->take(bytes);
  if (block == nullptr && is_in_file) return BlockPool(folder_, bytes, 1).take(bytes);
  if (block == nullptr) block = map_block(bytes);
  return c10::InefficientStdFunctionContext::makeDataPtr(
      block, [free = free_, bytes](void* given) { free->give_back(static_cast<char*>(given), bytes); }, device_);
}

}  // namespace fsdp::memory
