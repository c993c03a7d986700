#include "memory/disk_store.h"

#include <fcntl.h>
#include <fsdp/error.h>
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

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::max(page, (bytes + page - 1) / page * page);
}

// Not every file system knows files that never had a name.
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
                      "). Choose a folder with more room, use more ranks, raise DiskOffloadPolicy::host_limit_bytes, "
                      "or raise the limit on files (ulimit -f)"));
}

}  // namespace

struct DiskStore::File {
  int file = -1;
  char* address = nullptr;
  size_t block_bytes = 0, bytes = 0;
  Mutex mutex;
  std::vector<size_t> free FSDP_GUARDED_BY(mutex);  // where the blocks that nobody has begin

  ~File() {
    if (address != nullptr) munmap(address, bytes);
    if (file >= 0) close(file);
  }

  // What nobody wants any more is not written out, and keeps its room.
  void give_back(size_t begin) noexcept {
    fallocate(file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
              static_cast<off_t>(block_bytes));
    const MutexLock lock(mutex);
    free.push_back(begin);  // had this place before
  }
};

DiskStore::DiskStore(std::string folder, size_t block_bytes, size_t blocks)
    : folder_(std::move(folder)), file_(std::make_shared<File>()) {
  auto& [file, address, size, bytes, mutex, free] = *file_;
  size = whole_pages(block_bytes);
  bytes = size * blocks;
  file = open_nameless(folder_);
  if (file < 0) refuse(folder_, bytes, "to make a file", errno);
  if (const int error = set_file_size(file, bytes, /*now=*/true)) refuse(folder_, bytes, "to take the room", error);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) refuse(folder_, bytes, "to map the file", errno);
  address = static_cast<char*>(mapped);
  for (size_t i = blocks; i > 0; --i) free.push_back((i - 1) * size);
}

c10::DataPtr DiskStore::take(size_t bytes) {
  MutexLock lock(file_->mutex);
  if (file_->free.empty() || bytes > file_->block_bytes) {
    lock.unlock();
    return DiskStore(folder_, bytes, 1).take(bytes);
  }
  const size_t begin = file_->free.back();
  file_->free.pop_back();
  return c10::InefficientStdFunctionContext::makeDataPtr(
      file_->address + begin, [file = file_, begin](void*) { file->give_back(begin); }, c10::kCPU);
}

}  // namespace fsdp::memory
