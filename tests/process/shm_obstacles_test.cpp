// Where a machine does not provide what shared memory needs, every rank gets a one-sentence error, no signal and no
// hang.

#include <fsdp/fsdp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "comm/shm/links.h"
#include "process/ranks.h"

namespace fsdp::test {
namespace {

const ProcessGroupOptions kShm{.backend = "shm", .timeout = std::chrono::seconds(20)};

int own_rank() { return std::atoi(std::getenv("RANK")); }

// From now on the system call fails, as under a container's seccomp profile. With `first_argument`, only calls that
// pass it fail.
void make_fail(long system_call, int error, std::optional<uint32_t> first_argument = std::nullopt) {
  const auto number = static_cast<uint32_t>(system_call);
  std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),  // the argument's lower half comes first
      BPF_JUMP(static_cast<uint16_t>(BPF_JMP | (first_argument ? BPF_JEQ : BPF_JGE) | BPF_K),
               first_argument.value_or(0), 0, 1),
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

struct ShmObstacle {
  const char* name;
  int rank;  // the one that meets it
  bool is_met_in_init;
  void (*arise)();
  std::vector<std::string> told;  // parts of every rank's error
  bool needs_root = false;
};

const ShmObstacle kShmObstacles[]{
    {"address_space",
     1,
     false,
     limit_address_space,
     {"rank 1 cannot share memory for the rows of 'Linear'", "could not be mapped", "ulimit -v"}},
    {"open_files", 1, false, limit_open_files, {"rank 1 cannot share memory", "ulimit -n"}},
    // The kernel gives this error when a memory file system or its control group is full. Rank 0 makes the segments.
    {"memory",
     0,
     false,
     [] { make_fail(SYS_fallocate, ENOSPC); },
     {"rank 0 cannot share memory", "MiB for a shared segment: No space left on device", "Use a smaller model"}},
    // Where the system would end the process by SIGXFSZ; what the rank prints is a file too.
    {"file_size",
     0,
     false,
     [] {
       const rlimit limit{1 << 20, RLIM_INFINITY};
       TORCH_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
     },
     {"rank 0 cannot share memory", "MiB for a shared segment: File too large", "ulimit -f"}},
    {"memfd",
     1,
     true,
     forbid_memfd,
     {"the backend \"shm\" needs memory that all ranks share: rank 1: memfd_create failed", "A sandbox may forbid it",
      "gloo"}},
    {"unix_sockets",
     1,
     true,
     [] { make_fail(SYS_socket, EPERM, AF_UNIX); },
     {"rank 1: socket(AF_UNIX) failed: Operation not permitted", "A sandbox may forbid it", "gloo"}},
    // Rank 1 hosts nothing else that has to be bound.
    {"abstract_names",
     1,
     true,
     [] { make_fail(SYS_bind, EPERM); },
     {"rank 1: binding an abstract Unix socket failed: Operation not permitted", "gloo"}},
    {"another_user",
     1,
     true,
     [] { TORCH_CHECK(setuid(65534) == 0); },
     {"ranks of one user can share memory, found a process of user"},
     /*needs_root=*/true}};

PROCESS_CASE(shm_with_an_obstacle) {
  const auto& obstacle =
      *std::ranges::find(kShmObstacles, std::string_view(std::getenv("OBSTACLE")), &ShmObstacle::name);
  const bool is_met_here = obstacle.rank == own_rank();
  if (is_met_here && obstacle.is_met_in_init) obstacle.arise();
  init_process_group(kShm);
  torch::nn::Linear linear(4096, 4096);
  if (is_met_here && !obstacle.is_met_in_init) obstacle.arise();
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

PROCESS_CASE(cpu_without_memfd) {
  if (own_rank() == 1) forbid_memfd();
  init_process_group({.backend = "cpu"});
  barrier();
  TORCH_CHECK(default_process_group()->communicator().share(64, at::kCPU, {"test", {}}) == nullptr);
}

TEST(ShmWithoutMemory, TheBackendCpuDoesWithoutAndSaysWhy) {
  auto ranks = start_ranks("cpu_without_memfd", 2);
  expect_end(ranks, 1, 0);
  expect_end(ranks, 0, 0,
             {"fsdp: the ranks of this host use Gloo instead of shared memory: rank 1: memfd_create failed"});
}

// The abstract names of this process's sockets.
std::set<std::string> own_socket_names() {
  std::set<std::string> inodes, names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream words(line);
    std::string word, inode, name;
    for (int i = 0; i < 6; ++i) words >> word;
    words >> inode >> name;
    if (inodes.contains(inode) && name.starts_with("@")) names.insert(name);
  }
  return names;
}

// Connects to an abstract name and sends `text`, or nothing. The connection stays open while the process lives.
void intrude(const std::string& name, const std::string& text) {
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.substr(1).copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  while (connect(connection, reinterpret_cast<const sockaddr*>(&address), length) != 0) std::this_thread::yield();
  if (!text.empty()) TORCH_CHECK(send(connection, text.data(), text.size(), 0) > 0);
}

// Rank 0 publishes its socket's name as soon as it listens. Rank 1 first connects there as several intruders, and joins
// only then.
PROCESS_CASE(shm_with_intruders) {
  const std::string place = std::getenv("FSDP_TEST_PLACE");
  std::jthread teller;
  if (own_rank() == 0) {
    teller = std::jthread([place] {
      std::set<std::string> names;
      while (names = own_socket_names(), names.empty()) std::this_thread::yield();
      std::ofstream(place + ".new") << *names.begin();
      std::filesystem::rename(place + ".new", place);
    });
  } else if (own_rank() == 1) {
    while (!std::filesystem::exists(place)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::string name;
    std::getline(std::ifstream(place), name);
    intrude(name, "");
    intrude(name, "hello");
    for (const char rank : {0, 1, 2, 99}) {
      std::string hello(sizeof(shm::Notice), '\0');
      hello[0] = rank;
      intrude(name, hello);
    }
    std::array<int, 2> ready{};
    TORCH_CHECK(pipe(ready.data()) == 0);
    if (geteuid() == 0 && fork() == 0) {
      if (setuid(65534) != 0) _exit(1);
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // set here because setuid clears it
      intrude(name, "");
      if (write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    }
    char answer = 0;
    TORCH_CHECK(geteuid() != 0 || read(ready[0], &answer, 1) == 1);
  }
  init_process_group(kShm);
  torch::nn::Linear linear(64, 64);
  auto model = fully_shard(linear);
  model(torch::ones({1, 64})).sum().backward();
  for (const auto& name : own_socket_names()) std::cout << "left: " << name << std::endl;
  // Segments have no name either.
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    TORCH_CHECK(line.find("/dev/shm") == std::string::npos, "a file in /dev/shm: ", line);
}

TEST(ShmLinks, ForeignAndSilentConnectionsArePassedOverAndNothingIsLeft) {
  const std::string place = testing::TempDir() + "/fsdp_intruders_" + std::to_string(getpid());
  auto ranks = start_ranks("shm_with_intruders", 3, {{"FSDP_TEST_PLACE", place}});
  std::set<std::string> names;
  for (int rank = 0; rank < 3; ++rank) {
    expect_end(ranks, rank, 0);
    std::istringstream lines(ranks.wait(rank).output);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("left: ")) names.insert(line.substr(6));
  }
  std::remove(place.c_str());
  EXPECT_FALSE(names.empty()) << "the ranks saw no socket of theirs";
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    for (const auto& name : names) EXPECT_EQ(line.find(name), std::string::npos) << line;
}

}  // namespace
}  // namespace fsdp::test
