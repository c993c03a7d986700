#include "support/thread_ranks.h"

#include <c10/util/StringUtil.h>
#include <fsdp/error.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm/group/join.h"
#include "comm/group/membership.h"

#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fsdp::test {
namespace {

struct Failure {
  int rank;
  std::exception_ptr exception;
};

std::string text_of(const Failure& failure) {
  try {
    std::rethrow_exception(failure.exception);
  } catch (const c10::Error& error) {
    return c10::str("rank ", failure.rank, ": ", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return c10::str("rank ", failure.rank, ": ", error.what());
  } catch (...) {
    return c10::str("rank ", failure.rank, ": unknown exception");
  }
}

[[noreturn]] void rethrow(const std::vector<Failure>& failures) {
  std::string text = text_of(failures.front());
  for (size_t i = 1; i < failures.size(); ++i) text += "\n  then " + text_of(failures[i]);
  try {
    std::rethrow_exception(failures.front().exception);
  } catch (const PeerLost& error) {
    throw PeerLost(error.rank(), text);
  } catch (const Mismatch&) {
    throw Mismatch(text);
  } catch (const UsageError&) {
    throw UsageError(text);
  } catch (...) {
    throw Error(text);
  }
}

// Destroys the group in the background, because Gloo sleeps up to 10 ms for each connection that it closes.
void leave_meanwhile(std::shared_ptr<ProcessGroup> group) {
  constexpr size_t kMost = 16;
  static std::mutex mutex;
  static std::deque<std::future<void>> leaving;  // destroyed at exit, which waits for all of them
  auto leave = std::async(std::launch::async, [group = std::move(group)]() mutable { group.reset(); });
  std::future<void> oldest;  // its destructor waits
  std::lock_guard lock(mutex);
  leaving.push_back(std::move(leave));
  if (leaving.size() <= kMost) return;
  oldest = std::move(leaving.front());
  leaving.pop_front();
}

}  // namespace

std::shared_ptr<ProcessGroup> make_thread_rank(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
                                               const ThreadRanksOptions& options) {
  Membership membership;
  membership.ranks = {rank, world_size};
  membership.parameters.local_rank = rank;
  membership.backend = options.backend.empty() ? test_backend() : options.backend;
  const auto hosts = options.hosts.empty() ? test_hosts(world_size, membership.backend) : options.hosts;
  membership.host = c10::str("host ", hosts[static_cast<size_t>(rank)]);
  if (options.device_backend) membership.device_backend = options.device_backend(rank);
  if (membership.device_backend) make_current(membership.device_backend->device);
  Rendezvous rendezvous{membership, store, options.timeout, /*store_in_rank_0=*/false};
  if (!options.wrap) return join_as_group(rendezvous);
  return std::make_shared<ProcessGroup>(options.wrap(join(rendezvous), rank), rank);
}

std::thread thread_of_rank(std::function<void()> act) {
  return std::thread([group = default_process_group(), act = std::move(act)] {
    const ThreadProcessGroupGuard guard(group);
    act();
  });
}

void run_thread_ranks(int world_size, const std::function<void(int rank)>& fn, ThreadRanksOptions options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  std::vector<Failure> failures;
  const auto run_rank = [&](int rank) {
    std::shared_ptr<ProcessGroup> group;
    try {
      group = make_thread_rank(store, rank, world_size, options);
      const ThreadProcessGroupGuard guard(group);
      fn(rank);
    } catch (...) {
      // The failure is recorded before the rank leaves its group, because the other ranks' errors follow from this one.
      std::lock_guard lock(mutex);
      failures.push_back({rank, std::current_exception()});
    }
    if (!options.device_backend) leave_meanwhile(std::move(group));
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(run_rank, rank);
  for (auto& thread : threads) thread.join();
  if (!failures.empty()) rethrow(failures);
}

}  // namespace fsdp::test
