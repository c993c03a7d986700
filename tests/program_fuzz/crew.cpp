#include "program_fuzz/fuzz.h"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <thread>

#include "launch/variables.h"
#include "support/quiet_child.h"

namespace fsdp::test::fuzz {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Timeout of the process group. A rank that makes no progress for twice as long counts as hung.
constexpr auto kTimeout = std::chrono::seconds(15);
constexpr int kMostMembers = kMostRanks + 1;
constexpr size_t kRoom =
    size_t{2} << 30;  // number of bytes for one member's values; only the pages that are written take memory
constexpr auto kLook = std::chrono::microseconds(100);

// State of one process, which it shares with the others. The process sets `failed` after it has written everything that
// explains the failure.
struct Member {
  std::atomic<int64_t> steps;    // number of statements begun in all programs so far
  std::atomic<int> statement;    // number of the statement that the process executes
  std::atomic<size_t> finished;  // number of programs finished; `values` are those of the last one
  std::atomic<bool> failed;      // `text` says why the process failed
  std::array<char, 3000> text;
  size_t bytes;
  std::array<std::byte, kRoom> values;
};

// Memory that all processes share. It begins as zeros.
struct Board {
  std::atomic<size_t> compared;  // number of programs that were compared
  std::atomic<int> failures;     // 1 + the number of the process that failed first
  std::array<Member, kMostMembers> members;
};

std::shared_ptr<Board> make_board() {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error("program_fuzz: no memory for the values of programs");
  return {new (memory) Board, [](Board* board) { munmap(board, sizeof(Board)); }};
}

// Runs one process of the crew. `number` is its rank, or the number of ranks for the process that runs the programs
// unsharded.
class CrewMember {
 public:
  CrewMember(const std::vector<Program>& programs, const CrewOptions& options, Board& board, int number)
      : programs_(programs), options_(options), board_(board), number_(number) {}

  void run(int port) {
    try {
      if (is_rank())
        init_process_group({.backend = programs_[0].backend,
                            .timeout = kTimeout,
                            .rank = number_,
                            .world_size = world_size(),
                            .local_rank = number_,
                            .address = c10::str("127.0.0.1:", port)});
      {
        Meshes meshes;
        for (const auto& program : programs_) run_one(program, meshes);
      }
      destroy_process_group();
    } catch (const c10::Error& error) {
      fail(error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }

 private:
  bool is_rank() const { return number_ < world_size(); }
  int world_size() const { return programs_[0].world_size; }
  Member& self() { return member(number_); }
  Member& member(int number) { return item(board_.members, number); }

  void run_one(const Program& program, Meshes& meshes) {
    const Watch watch{[&](const Statement& statement) { begin(statement); }, [&](const Lag& lag) { hold_up(lag); }};
    const auto values = is_rank() ? run_sharded(program, number_, watch, options_.plant, meshes)
                                  : run_unsharded(program, options_.plant);
    self().bytes = write_values(values, self().values);
    const size_t number = ++self().finished;
    // This process is now ahead of those that still run this program, but not of those that run the next one.
    self().steps = static_cast<int64_t>(number) * kBetween;
    while (board_.compared < number) std::this_thread::sleep_for(kLook);
  }

  void begin(const Statement& statement) {
    self().statement = statement.number;
    ++self().steps;
  }

  void hold_up(const Lag& lag) {
    if (lag.rank != number_) return;
    const auto end = Clock::now() + options_.longest_lag;
    const int64_t wanted = self().steps + lag.ahead;
    const auto are_ahead = [&] {
      for (int rank = 0; rank < world_size(); ++rank)
        if (rank != number_ && member(rank).steps < wanted) return false;
      return true;
    };
    while (!are_ahead() && Clock::now() < end) std::this_thread::sleep_for(kLook);
  }

  void fail(const std::string& text) {
    text.copy(self().text.data(), self().text.size() - 1);
    int nobody = 0;
    board_.failures.compare_exchange_strong(nobody, number_ + 1);
    self().failed = true;
  }

  static constexpr int64_t kBetween = 1'000'000;
  const std::vector<Program>& programs_;
  const CrewOptions& options_;
  Board& board_;
  const int number_;
};

class Crew {
 public:
  Crew(const std::vector<Program>& programs, const CrewOptions& options)
      : programs_(programs), options_(options), board_(make_board()), size_(programs[0].world_size + 1) {
    for (int number = 0; number < size_; ++number) processes_.push_back(start(number, port_.number()));
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  CrewReport run() {
    CrewReport report;
    while (report.passed < programs_.size()) {
      report.finding = wait_for(report.passed + 1);
      if (!report.finding) report.finding = judge();
      if (report.finding) return report;
      ++report.passed;
      board_->compared = report.passed;
    }
    return report;
  }

 private:
  Child start(int number, int port) {
    return start_quiet_child([&] {
      at::set_num_threads(1);
      CrewMember(programs_, options_, *board_, number).run(port);
    });
  }

  Member& member(int number) { return item(board_->members, number); }

  // Waits until every process has finished `finished` programs. Returns a finding if a process cannot.
  std::optional<Finding> wait_for(size_t finished) {
    int64_t steps = -1;
    auto since = Clock::now();
    for (;;) {
      bool all = true;
      int64_t sum = 0;
      for (int number = 0; number < size_; ++number) {
        all = all && member(number).finished >= finished;
        sum += member(number).steps;
      }
      if (all) return std::nullopt;
      if (const int first = board_->failures; first != 0 && member(first - 1).failed)
        return Finding{Wrong::kError, first - 1, member(first - 1).statement, member(first - 1).text.data()};
      if (auto crash = find_crash(finished)) return crash;
      if (sum != steps) since = Clock::now();
      steps = sum;
      if (Clock::now() > since + 2 * kTimeout) return describe_hang(finished);
      std::this_thread::sleep_for(kLook);
    }
  }

  std::optional<Finding> find_crash(size_t finished) {
    for (int number = 0; number < size_; ++number) {
      auto& process = item(processes_, number);
      if (!process.is_running() || !process.has_ended()) continue;
      if (member(number).failed || member(number).finished >= finished) continue;
      return Finding{Wrong::kCrash, number, member(number).statement, process.status()->describe()};
    }
    return std::nullopt;
  }

  Finding describe_hang(size_t finished) {
    Finding finding{Wrong::kHang, 0, 0, "no progress;"};
    for (int number = size_ - 1; number >= 0; --number) {
      if (member(number).finished >= finished) continue;
      finding.rank = number;
      finding.statement = member(number).statement;
      finding.text += c10::str(" rank ", number, " is in statement ", member(number).statement);
    }
    return finding;
  }

  std::optional<Finding> judge() {
    const auto values_of = [&](int number) {
      return read_values(std::span(member(number).values).first(member(number).bytes));
    };
    const auto expected = values_of(size_ - 1);
    for (int rank = 0; rank + 1 < size_; ++rank)
      if (auto finding = compare(rank, expected, values_of(rank))) return finding;
    return std::nullopt;
  }

  const std::vector<Program>& programs_;
  const CrewOptions& options_;
  const std::shared_ptr<Board> board_;
  const int size_;
  const HeldPort port_;
  std::vector<Child> processes_;
};

}  // namespace

CrewReport run_crew(const std::vector<Program>& programs, const CrewOptions& options) {
  return programs.empty() ? CrewReport{} : Crew(programs, options).run();
}

}  // namespace fsdp::test::fuzz
