// Tests of the communicator on the checked device: every collective, with one launch per call.

#include <fsdp/fsdp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <memory>

#include "support/checked_device/checked_device.h"
#include "support/collective_cases.h"

namespace fsdp::test::checked {
namespace {

class CheckedCollectives : public CheckedDevice {};

// Each collective runs twice, so that memory is reused.
TEST_F(CheckedCollectives, MoveSeveralPlanesAsOneAndAreOrdered) {
  for (const int size : {2, 3})
    run_ranks(size, [](int rank) {
      for (int round = 0; round < 2; ++round) check_collectives(default_process_group()->communicator(), device(rank));
    });
}

TEST_F(CheckedCollectives, AreLaunchedOnceWhateverTheirPlanes) {
  run_ranks(2, [](int rank) {
    auto& ranks = default_process_group()->communicator();
    const auto on_device = [&](int64_t numel, at::ScalarType dtype = at::kFloat) {
      return at::ones({numel}, at::TensorOptions().dtype(dtype).device(device(rank)));
    };
    const auto reduce = [&](const std::vector<at::Tensor>& slices) {
      std::vector<ReducePlane> planes;
      for (const auto& slice : slices)
        planes.push_back({slice, {{0, on_device(2 * slice.numel(), slice.scalar_type())}}});
      return ranks.reduce_scatter(std::move(planes), 0.5, {"w"});
    };
    const std::vector<at::Tensor> several{on_device(3), on_device(0), on_device(7, at::kBFloat16), on_device(5)};
    const std::vector<std::pair<const char*, std::function<std::shared_ptr<Work>()>>> calls{
        {"all_gather of one plane", [&] { return ranks.all_gather(on_device(8), on_device(4), {"w"}); }},
        {"all_gather of three planes",
         [&] {
           return ranks.all_gather({{on_device(8), on_device(4)},
                                    {on_device(6, at::kByte), on_device(3, at::kByte)},
                                    {on_device(2), on_device(1)}},
                                   {"w"});
         }},
        {"reduce_scatter of one plane", [&] { return reduce({on_device(5)}); }},
        {"reduce_scatter of three planes and an empty one", [&] { return reduce(several); }},
        {"all_reduce of one tensor", [&] { return ranks.all_reduce(on_device(5), ReduceOp::kSum, {"w"}); }},
        {"all_reduce of three and an empty one", [&] { return ranks.all_reduce(several, ReduceOp::kMax, {"w"}); }},
        {"all_to_all", [&] { return ranks.all_to_all(on_device(8), on_device(8), {"w"}); }},
        {"broadcast", [&] { return ranks.broadcast(on_device(5), 1, {"w"}); }}};
    for (const auto& [what, call] : calls) {
      const int before = launches_on(device(rank));
      call()->wait();
      EXPECT_EQ(launches_on(device(rank)) - before, 1) << what;
    }
  });
}

// Work that the current stream gets in the function `next` comes after the collective, whichever thread runs `next`.
TEST_F(CheckedCollectives, WhatFollowsThemComesAfterThemOnStreamsToo) {
  run_ranks(2, [](int rank) {
    auto& ranks = default_process_group()->communicator();
    const auto sum = at::full({1000}, rank + 1.0f, at::TensorOptions().device(device(rank)));
    const auto twice = at::zeros_like(sum);
    const auto work = followed_by(ranks.all_reduce(sum, ReduceOp::kSum, {"sum"}), twice,
                                  [=] { twice.copy_(sum).mul_(2); });
    std::shared_ptr<Work> second;
    work->then([&] { second = ranks.all_reduce(twice, ReduceOp::kSum, {"sum of sums"}); });
    work->wait();
    second->wait();
    EXPECT_TRUE(at::equal(twice.cpu(), at::full({1000}, 12.0f)));
  });
}

// No rank waits for the collective, so a later one fails.
TEST_F(CheckedCollectives, DataThatDoesNotMoveInTimeIsAnErrorOfLaterCollectives) {
  set_fate(device(0), Fate::kHangs);
  const auto act = [](int rank) {
    auto& ranks = default_process_group()->communicator();
    const auto flat = at::zeros({8}, device(rank));
    ranks.all_gather(flat, flat.narrow(0, 4 * rank, 4), {"stuck"})->wait();
    EXPECT_THROW(
        while (true) barrier(), Error);
    EXPECT_THROW(ranks.broadcast(flat, 0, {"next"})->wait(), Error);
  };
  run_ranks(2, act, std::chrono::seconds(1));
}

}  // namespace
}  // namespace fsdp::test::checked
