#include "comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "comm/core/mutex.h"
#include "comm/core/text.h"
#include "comm/posix/file.h"

namespace fsdp::shm {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the number after `key` at the beginning of a line, such as "inactive_file 4096" or "MemAvailable:  12 kB".
std::optional<uint64_t> field(const std::string& text, std::string_view key) {
  TextReader lines(text);
  for (std::string line; std::getline(lines, line);) {
    uint64_t number = 0;
    if (line.starts_with(key) && TextReader(line.substr(key.size())) >> number) return number;
  }
  return std::nullopt;
}

// Returns the bytes that the control groups of this process still allow; nullopt if none has a limit.
std::optional<uint64_t> left_by_control_groups() {
  std::optional<uint64_t> left;
  TextReader lines(text_of("/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("0::/")) continue;
    std::filesystem::path folder = "/sys/fs/cgroup" + line.substr(3);
    for (; folder != "/sys/fs"; folder = folder.parent_path()) {
      const auto read = [&](const char* name) { return text_of((folder / name).string()); };
      const auto here = left_by_limit(read("memory.max"), read("memory.current"), read("memory.stat"));
      if (here) left = std::min(left.value_or(*here), *here);
    }
  }
  return left;
}

std::string problem(const std::string& what, int error) {
  return str_cat(what, " failed: ", std::strerror(error),
                 error == EMFILE ? ". Raise the limit on open files (ulimit -n)"
                                 : ". Perhaps a sandbox forbids it; use the backend \"gloo\"");
}

std::string mebibytes(uint64_t bytes) { return str_cat((bytes + (1u << 20) - 1) >> 20, " MiB"); }

void require_room(size_t bytes) {
  constexpr size_t kNotWorthAsking = size_t{1} << 20;
  if (bytes < kNotWorthAsking) return;
  auto available = field(text_of("/proc/meminfo"), "MemAvailable:");
  if (available) *available *= 1024;
  if (const auto left = left_by_control_groups()) available = std::min(available.value_or(*left), *left);
  if (!available || bytes <= *available) return;
  throw Obstacle(str_cat("expected ", mebibytes(bytes), " of memory for a shared segment, found ",
                         mebibytes(*available),
                         " available. Use a smaller model, more memory or the backend \"gloo\""));
}

// The mappings of this process.
struct Mappings {
  Mutex mutex;
  std::map<ino_t, std::weak_ptr<std::byte>> by_inode FSDP_GUARDED_BY(mutex);
};

}  // namespace

std::optional<uint64_t> left_by_limit(const std::string& limit, const std::string& used, const std::string& stat) {
  const auto most = field(limit, ""), now = field(used, "");  // "max", which means no limit, is not a number
  if (!most || !now) return std::nullopt;
  // The kernel drops cached pages of files when memory is short.
  const uint64_t files = field(stat, "inactive_file ").value_or(0) + field(stat, "active_file ").value_or(0);
  const uint64_t held = *now > files ? *now - files : 0;
  return *most > held ? *most - held : 0;
}

Descriptor make_segment(const std::string& name, size_t bytes, Paging paging) {
  if (paging == Paging::kAtOnce) require_room(bytes);
  Descriptor segment(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.is_open()) throw Obstacle(problem("memfd_create", errno));
  if (const int error = set_file_size(segment.number(), bytes, paging == Paging::kAtOnce))
    throw Obstacle(str_cat(
        "cannot allocate ", mebibytes(bytes), " for a shared segment: ", std::strerror(error),
        error == EFBIG ? ". Raise the limit on the size of files (ulimit -f)" : ". Use a smaller model, more memory",
        " or the backend \"gloo\""));
  if (fcntl(segment.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Obstacle(problem("sealing a shared segment", errno));
  return segment;
}

Descriptor find_segment(pid_t process, const std::string& name) {
  const std::string link = str_cat("/memfd:", name, " (deleted)"), folder = str_cat("/proc/", process, "/fd");
  std::error_code error;
  for (std::filesystem::directory_iterator next(folder, error), end; !error && next != end; next.increment(error)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(next->path(), gone) != link) continue;
    Descriptor segment(open(next->path().c_str(), O_RDWR | O_CLOEXEC));
    if (segment.is_open()) return segment;
    // The process may have ended or closed the segment since its link was read.
    if (errno != ENOENT) throw Obstacle(problem("opening a segment of another process", errno));
  }
  if (error && error.value() != ENOENT && error.value() != ESRCH)
    throw Obstacle(problem("reading " + folder, error.value()));
  return {};
}

void take_pages(std::byte* begin, size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  const auto before = reinterpret_cast<uintptr_t>(begin) % static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || madvise(begin - before, before + bytes, kPopulateWrite) == 0 || errno == EINVAL) return;
  throw Obstacle(str_cat("cannot allocate ", mebibytes(bytes), " for a shared segment: ", std::strerror(errno),
                         ". Use more memory or the backend \"gloo\""));
}

std::shared_ptr<std::byte> map_segment(const Descriptor& segment, std::optional<size_t> bytes) {
  static auto* const mappings = new Mappings;
  struct stat file{};
  if (fstat(segment.number(), &file) != 0) throw Obstacle(problem("reading the size of a shared segment", errno));
  const auto size = static_cast<size_t>(file.st_size);
  if (size != bytes.value_or(size))
    throw Obstacle(str_cat("expected ", *bytes, " bytes, found ", size, ". Build the same model on every rank"));
  const MutexLock lock(mappings->mutex);
  auto& all = mappings->by_inode;
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[file.st_ino];
  auto memory = known.lock();
  if (memory) return memory;
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, segment.number(), 0);
  if (address == MAP_FAILED)
    throw Obstacle(str_cat("a shared segment of ", mebibytes(size), " could not be mapped: ", std::strerror(errno),
                           ". Raise the limit on address space (ulimit -v) or use the backend \"gloo\""));
  known = memory = {static_cast<std::byte*>(address), [size](std::byte* data) { munmap(data, size); }};
  return memory;
}

}  // namespace fsdp::shm
