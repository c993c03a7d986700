// The communicator on the checked device: every collective, with equal and unequal parts.

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "support/checked_device/checked_device.h"
#include "support/thread_ranks.h"

namespace fsdp::test::checked {
namespace {

class CheckedCollectives : public CheckedDevice {};

// The rank's elements, [offsets[rank], offsets[rank + 1]).
at::Tensor part_of(const at::Tensor& flat, const std::vector<int64_t>& offsets, int rank) {
  return flat.slice(0, offsets[static_cast<size_t>(rank)], offsets[static_cast<size_t>(rank) + 1]);
}

// The values are small integers, so every order of summation gives the same bits. Tensors are made and dropped as
// callers would do it.
void run_collectives(const std::vector<int64_t>& offsets, int rank) {
  auto& ranks = default_process_group()->communicator();
  const int size = world_size();
  const auto ramp = at::arange(static_cast<double>(offsets.back()), device(rank));
  const auto sum = ramp * size + size * (size - 1) / 2;
  const auto zeros = [&](int64_t numel) { return at::zeros({numel}, ramp.options()); };

  const auto gathered = zeros(offsets.back());
  ranks.all_gather(gathered, part_of(ramp, offsets, rank).clone(), offsets, {"gather", {}})->wait();
  EXPECT_TRUE(at::equal(gathered.cpu(), ramp.cpu()));

  const auto reduced = zeros(part_of(ramp, offsets, rank).numel());
  ranks.reduce_scatter(reduced, ramp + rank, offsets, {"reduce", {}})->wait();
  EXPECT_TRUE(at::equal(reduced.cpu(), part_of(sum, offsets, rank).cpu()));

  std::vector<Piece> pieces{{0, (ramp + rank).narrow(0, 0, 1).clone()}};
  ranks.reduce_scatter(reduced, std::move(pieces), offsets, 0.5, {"pieces", {}})->wait();

  const auto total = ramp + rank, from_last = ramp + rank;
  ranks.all_reduce(total, ReduceOp::kSum, {"sum", {}})->wait();
  EXPECT_TRUE(at::equal(total.cpu(), sum.cpu()));
  ranks.broadcast(from_last, size - 1, {"broadcast", {}})->wait();
  EXPECT_TRUE(at::equal(from_last.cpu(), (ramp + (size - 1)).cpu()));

  const auto received = zeros(offsets.back());
  ranks.send_recv(ramp + rank, (rank + 1) % size, received, (rank + size - 1) % size, {"ring", {}})->wait();
  EXPECT_TRUE(at::equal(received.cpu(), (ramp + (rank + size - 1) % size).cpu()));
}

TEST_F(CheckedCollectives, DtypesThatTheBackendDoesNotKnowAreMovedAsBytes) {
  run_ranks(2, [&](int rank) {
    auto& ranks = default_process_group()->communicator();
    for (const auto dtype : {at::kShort, at::kFloat8_e4m3fn, at::kComplexFloat, at::kUInt16})
      for (const auto& offsets : {std::vector<int64_t>{0, 4, 8}, std::vector<int64_t>{0, 3, 8}}) {
        const auto ramp = at::arange(8, at::kFloat).to(dtype).to(device(rank));
        const auto gathered = at::zeros({8}, at::kFloat).to(dtype).to(device(rank));
        ranks.all_gather(gathered, part_of(ramp, offsets, rank).clone(), offsets, {"gather", {}})->wait();
        EXPECT_TRUE(at::equal(gathered.cpu().to(at::kFloat), at::arange(8, at::kFloat))) << dtype;
        const auto first = at::full({3}, rank + 1, at::kFloat).to(dtype).to(device(rank));
        ranks.broadcast(first, 0, {"broadcast", {}})->wait();
        EXPECT_TRUE(at::equal(first.cpu().to(at::kFloat), at::ones({3}))) << dtype;
      }
  });
}

TEST_F(CheckedCollectives, EqualAndUnequalPartsAreOrdered) {
  for (const int size : {2, 3})
    run_ranks(size, [&](int rank) {
      for (const int growth : {0, 3, 0}) {
        std::vector<int64_t> offsets{0};
        for (int i = 0; i < size; ++i) offsets.push_back(offsets.back() + 2 + growth * i);
        for (int round = 0; round < 2; ++round) run_collectives(offsets, rank);
      }
    });
}

// A backend whose data never moves. It counts how often it was aborted.
class StuckBackend : public c10d::Backend {
 public:
  using Count = std::shared_ptr<std::atomic<int>>;

  StuckBackend(int rank, int size, Count aborted) : Backend(rank, size), aborted_(std::move(aborted)) {}
  const std::string getBackendName() const override { return "stuck"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override {
    struct NeverOver : c10d::Work {
      Count aborted;
      bool isCompleted() override { return false; }
      bool wait(std::chrono::milliseconds) override { return true; }
      void abort() override { ++*aborted; }
    };
    auto work = c10::make_intrusive<NeverOver>();
    work->aborted = aborted_;
    return work;
  }

 private:
  const Count aborted_;
};

// Nobody waits for the collective, so the next one fails.
TEST_F(CheckedCollectives, DataThatDoesNotMoveInTimeIsAbortedAndAnErrorOfTheNextCollective) {
  const auto aborted = std::make_shared<std::atomic<int>>(0);
  ThreadRanksOptions options;
  options.backend = "gloo";
  options.timeout = std::chrono::seconds(1);
  options.device_backend = [&](int rank) {
    return DeviceBackend{device(rank), [aborted](const auto&, int own, int size, auto) {
                           return c10::make_intrusive<StuckBackend>(own, size, aborted);
                         }};
  };
  run_thread_ranks(
      2,
      [&](int rank) {
        auto& ranks = default_process_group()->communicator();
        const auto flat = at::zeros({8}, device(rank));
        ranks.all_gather(flat, flat.narrow(0, 4 * rank, 4), std::vector<int64_t>{0, 4, 8}, {"stuck", {}})->wait();
        const auto go_on = [&] {
          while (true) barrier();
        };
        EXPECT_THROW(go_on(), Error);
      },
      options);
  EXPECT_GT(*aborted, 0);
}

}  // namespace
}  // namespace fsdp::test::checked
