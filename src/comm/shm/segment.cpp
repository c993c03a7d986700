#include "comm/shm/segment.h"

#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>

namespace fsdp::shm {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<uint64_t> number_at(const std::string& text, size_t position) {
  while (position < text.size() && text[position] == ' ') ++position;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + position, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

// The folder of this process' control group (version 2), as the container sees it.
std::string control_group() {
  const std::string text = text_of("/proc/self/cgroup");
  const size_t begin = text.find("0::/");
  if (begin == std::string::npos) return "/sys/fs/cgroup";
  std::string folder = "/sys/fs/cgroup" + text.substr(begin + 3, text.find('\n', begin) - begin - 3);
  return std::ifstream(folder + "/memory.max") ? folder : "/sys/fs/cgroup";
}

std::string mebibytes(uint64_t bytes) { return c10::str((bytes + (1u << 20) - 1) >> 20, " MiB"); }

void require_room(size_t bytes) {
  const std::string group = control_group();
  const auto available =
      available_bytes(text_of("/proc/meminfo"), text_of(group + "/memory.max"), text_of(group + "/memory.current"));
  if (!available || bytes <= *available) return;
  throw Obstacle(c10::str("expected ", mebibytes(bytes), " of memory for a shared segment, found ",
                          mebibytes(*available),
                          " available. Use a smaller model, more memory or the backend \"gloo\""));
}

}  // namespace

std::optional<uint64_t> available_bytes(const std::string& meminfo, const std::string& limit, const std::string& used) {
  constexpr std::string_view kKey = "MemAvailable:";
  std::optional<uint64_t> available;
  if (const size_t place = meminfo.find(kKey); place != std::string::npos) {
    available = number_at(meminfo, place + kKey.size());
    if (available) *available *= 1024;
  }
  const auto most = number_at(limit, 0), now = number_at(used, 0);  // "max" is no number: no limit
  if (most && now) {
    const uint64_t left = *most > *now ? *most - *now : 0;
    available = available ? std::min(*available, left) : left;
  }
  return available;
}

Descriptor make_segment(size_t bytes) {
  require_room(bytes);
  Descriptor segment(memfd_create("fsdp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.is_open()) {
    throw Obstacle(c10::str("memfd_create failed: ", std::strerror(errno),
                            errno == EMFILE ? ". Raise the limit on open files (ulimit -n)"
                                            : ". A sandbox may forbid it; use the backend \"gloo\""));
  }
  if (const int error = posix_fallocate(segment.number(), 0, static_cast<off_t>(bytes)); error != 0)
    throw Obstacle(c10::str("no ", mebibytes(bytes), " for a shared segment: ", std::strerror(error),
                            ". Use a smaller model, more memory or the backend \"gloo\""));
  if (fcntl(segment.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Obstacle(c10::str("a shared segment could not be sealed: ", std::strerror(errno)));
  return segment;
}

Mapping::Mapping(const Descriptor& segment, size_t bytes) : bytes_(bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.number(), 0);
  if (address == MAP_FAILED)
    throw Obstacle(c10::str("a shared segment of ", mebibytes(bytes), " could not be mapped: ", std::strerror(errno),
                            ". Raise the limit on address space (ulimit -v) or use the backend \"gloo\""));
  data_ = static_cast<std::byte*>(address);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

}  // namespace fsdp::shm
