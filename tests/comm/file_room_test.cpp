#include "comm/posix/file.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "comm/posix/descriptor.h"
#include "launch/child.h"

namespace fsdp {
namespace {

// Makes each later reservation of more than 1 MiB fail with EINTR, as if a signal had interrupted it. A profiler's
// timer does that on file systems that heed signals.
bool interrupt_what_takes_long() {
  constexpr uint32_t kMost = 1 << 20;
  const size_t length = offsetof(seccomp_data, args) + 3 * sizeof(uint64_t);  // the lower half comes first
  std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(length)),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kMost, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINTR),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

int take_room() {
  constexpr size_t kBytes = size_t{100} << 20, kBytesOfABlock = 512;
  const rlimit seconds{20, 20};
  if (setrlimit(RLIMIT_CPU, &seconds) != 0 || !interrupt_what_takes_long()) return 2;
  const Descriptor file(memfd_create("room", MFD_CLOEXEC));
  if (set_file_size(file.number(), kBytes, /*now=*/true) != 0) return 3;
  struct stat status{};
  if (fstat(file.number(), &status) != 0 || static_cast<size_t>(status.st_size) != kBytes) return 4;
  return static_cast<size_t>(status.st_blocks) * kBytesOfABlock >= kBytes ? 0 : 5;
}

// The test runs in its own process, which the system ends if it makes no progress.
TEST(FileRoom, IsTakenInPiecesThatAreDoneBetweenTwoSignals) {
  const pid_t child = fork_process(take_room);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the exit status, or the signal that ended the child";
}

}  // namespace
}  // namespace fsdp
