// Tests how ranks end if the rendezvous store does not answer, and how often they call it.

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <array>
#include <future>
#include <limits>

#include "comm/frame.h"
#include "comm/group/join.h"
#include "support/stores.h"

namespace fsdp::test {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr int kNothing = -1, kOtherError = -2;

// Joins, communicates, starts over and leaves as one rank. Returns the rank that it lost, kNothing, or kOtherError.
int live(const StorePtr& store, int rank, std::chrono::milliseconds timeout) {
  try {
    const Membership membership{.parameters = {}, .ranks = {rank, 2}, .backend = "gloo"};
    Rendezvous rendezvous{membership, store, timeout, /*store_in_rank_0=*/true};
    const auto communicator = join(rendezvous);
    const ProcessGroup group(communicator, rank);
    communicator->barrier({})->wait();
    communicator->start_over();
    communicator->barrier({})->wait();
    return kNothing;
  } catch (const PeerLost& error) {
    return error.rank();
  } catch (const std::exception&) {
    return kOtherError;
  }
}

std::future<int> in_a_thread(std::function<int()> act) {
  std::packaged_task<int()> task(std::move(act));
  auto end = task.get_future();
  std::thread(std::move(task)).detach();
  return end;
}

// Runs two ranks. Rank 1 reaches the store through a host that the test can stop; rank 0 always reaches it.
struct TwoRanks {
  TwoRanks(int calls, std::chrono::milliseconds timeout) : host(std::make_shared<StoreHost>(calls)) {
    const StorePtr store = c10::make_intrusive<c10d::HashStore>();
    const StorePtr watched = c10::make_intrusive<WatchedStore>(store, [host = host] { host->ask(); });
    ends[0] = in_a_thread([=] { return live(store, 0, timeout); });
    ends[1] = in_a_thread([=] { return live(watched, 1, timeout); });
  }

  std::shared_ptr<StoreHost> host;
  std::array<std::future<int>, 2> ends;
};

TEST(AStoreThatStopsAnswering, HangsNoRankWhereverItStops) {
  using namespace std::chrono_literals;
  TwoRanks undisturbed(std::numeric_limits<int>::max(), 60s);
  for (auto& end : undisturbed.ends) ASSERT_EQ(end.get(), kNothing);
  const int calls = undisturbed.host->asked();
  EXPECT_GT(calls, 20);
  constexpr int kAtOnce = 40;
  for (int first = 0; first < calls; first += kAtOnce) {
    std::vector<TwoRanks> trials;
    for (int call = first; call < std::min(first + kAtOnce, calls); ++call) trials.emplace_back(call, 2s);
    for (size_t i = 0; i < trials.size(); ++i) {
      const int question = first + static_cast<int>(i);
      const bool ended = trials[i].ends[1].wait_for(40s) == std::future_status::ready;
      EXPECT_TRUE(ended) << "rank 1 hangs at its call " << question << " of " << calls;
      trials[i].host->go_on();
      EXPECT_TRUE(trials[i].ends[1].get() >= kNothing || !ended) << "another error at call " << question;
      trials[i].ends[0].wait();
    }
  }
}

}  // namespace
}  // namespace fsdp::test
