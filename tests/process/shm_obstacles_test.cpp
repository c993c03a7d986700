// Tests of machines that lack what shared memory needs. Every rank must get an error, not a signal, and must not hang.

#include <fsdp/fsdp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "process/ranks.h"

namespace fsdp::test {
namespace {

const ProcessGroupOptions kShm{.backend = "shm", .timeout = std::chrono::seconds(20)};

int own_rank() { return std::atoi(std::getenv("RANK")); }

// Makes the system call fail from now on, as a container's seccomp profile can do.
void make_fail(long system_call, int error) {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(system_call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{program.size(), program.data()};
  TORCH_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  TORCH_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

void limit_address_space() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * 4096 + (24u << 20), RLIM_INFINITY};
  TORCH_CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

void limit_open_files() {
  const int next = dup(0);
  close(next);
  const rlimit limit{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
  TORCH_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

void forbid_memfd() { make_fail(SYS_memfd_create, EPERM); }

void forbid_looking_into_this_process() { TORCH_CHECK(prctl(PR_SET_DUMPABLE, 0) == 0); }

enum class MetIn { kInit, kSplit, kSharding };

struct ShmObstacle {
  const char* name;
  int rank;  // rank that meets the obstacle
  MetIn met_in;
  void (*arise)();
  std::vector<std::string> told;  // parts of every rank's error
  bool needs_root = false;
};

const ShmObstacle kShmObstacles[]{
    {"address_space",
     1,
     MetIn::kSharding,
     limit_address_space,
     {"rank 1 cannot share memory for the rows of 'Linear'", "could not be mapped", "ulimit -v"}},
    {"open_files", 1, MetIn::kSharding, limit_open_files, {"rank 1 cannot share memory", "ulimit -n"}},
    // The kernel gives this error if a memory file system or its control group is full. Rank 0 makes the segments.
    {"memory",
     0,
     MetIn::kSharding,
     [] { make_fail(SYS_fallocate, ENOSPC); },
     {"rank 0 cannot share memory", "MiB for a shared segment: No space left on device", "Use a smaller model"}},
    // The system would end the process with SIGXFSZ. The rank's output is a file, too.
    {"file_size",
     0,
     MetIn::kSharding,
     [] {
       const rlimit limit{1 << 20, RLIM_INFINITY};
       TORCH_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
     },
     {"rank 0 cannot share memory", "MiB for a shared segment: File too large", "ulimit -f"}},
    {"memfd",
     1,
     MetIn::kInit,
     forbid_memfd,
     {"the backend \"shm\" needs memory that all ranks share: rank 1: memfd_create failed",
      "Perhaps a sandbox forbids it", "gloo"}},
    {"proc",
     1,
     MetIn::kInit,
     [] { make_fail(SYS_getdents64, EPERM); },
     {"rank 1: reading /proc/", "failed: Operation not permitted", "Perhaps a sandbox forbids it", "gloo"}},
    // Root could read the memory of such processes, so the library itself refuses them.
    {"dumpable",
     1,
     MetIn::kInit,
     forbid_looking_into_this_process,
     {"rank 1: this process is not dumpable (PR_SET_DUMPABLE", "gloo"}},
    // The kernel gives this error if use of the memory would end in SIGBUS, e.g. without overcommitment.
    {"slot",
     1,
     MetIn::kSharding,
     [] { make_fail(SYS_madvise, EFAULT); },
     {"all_reduce(min) of 'fully_shard Linear", "cannot allocate 1 MiB for a shared segment: Bad address", "gloo"}},
    {"open_files_of_a_split",
     1,
     MetIn::kSplit,
     limit_open_files,
     {"rank 1 failed in split into 'pair': memfd_create failed", "ulimit -n"}},
    {"another_user",
     1,
     MetIn::kInit,
     [] { TORCH_CHECK(setuid(65534) == 0); },
     {"only ranks of the same user can share memory, but user"},
     /*needs_root=*/true}};

const ShmObstacle& find_obstacle() {
  return *std::ranges::find(kShmObstacles, std::string_view(std::getenv("OBSTACLE")), &ShmObstacle::name);
}

PROCESS_CASE(shm_with_an_obstacle) {
  const auto& obstacle = find_obstacle();
  const bool is_met_here = obstacle.rank == own_rank();
  if (is_met_here && obstacle.met_in == MetIn::kInit) obstacle.arise();
  init_process_group(kShm);
  torch::nn::Linear linear(4096, 4096);
  if (is_met_here && obstacle.met_in != MetIn::kInit) obstacle.arise();
  if (obstacle.met_in == MetIn::kSplit) default_process_group()->split({{0, 1}}, "pair");
  fully_shard(linear);
}

class ShmObstacles : public testing::TestWithParam<ShmObstacle> {};

TEST_P(ShmObstacles, AreNamedOnEveryRank) {
  const auto& obstacle = GetParam();
  if (obstacle.needs_root && geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto ranks = start_ranks("shm_with_an_obstacle", 2, {{"OBSTACLE", obstacle.name}});
  expect_ends(ranks, 2, 1, obstacle.told);
}

INSTANTIATE_TEST_SUITE_P(Machines, ShmObstacles, testing::ValuesIn(kShmObstacles),
                         [](const auto& obstacle) { return obstacle.param.name; });

PROCESS_CASE(cpu_with_an_obstacle) {
  if (own_rank() == 1) find_obstacle().arise();
  init_process_group({.backend = "cpu"});
  barrier();
  TORCH_CHECK(default_process_group()->communicator().share(64, at::kCPU, {"test", {}}) == nullptr);
}

TEST(ShmObstaclesOfTheBackendCpu, AreSaidAndItDoesWithout) {
  const std::pair<const char*, const char*> obstacles[]{{"memfd", "memfd_create failed"},
                                                        {"dumpable", "this process is not dumpable"}};
  for (const auto& [obstacle, told] : obstacles) {
    auto ranks = start_ranks("cpu_with_an_obstacle", 2, {{"OBSTACLE", obstacle}});
    expect_end(ranks, 1, 0);
    expect_end(ranks, 0, 0,
               {str_cat("fsdp: the ranks of this host use Gloo instead of shared memory: rank 1: ", told)});
  }
}

}  // namespace
}  // namespace fsdp::test
