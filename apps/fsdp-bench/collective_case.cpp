#include "collective_case.h"

#include <array>
#include <cstring>
#include <limits>

#include "pattern.h"

namespace bench {
namespace {

uint32_t rank_of(const Exercise& exercise) { return static_cast<uint32_t>(exercise.communicator.rank()); }
uint32_t world_of(const Exercise& exercise) { return static_cast<uint32_t>(exercise.communicator.world_size()); }
PatternKey own_key(const Exercise& exercise) { return {.rank = rank_of(exercise), .round = exercise.round}; }

std::string place(const Exercise& exercise, const char* name) {
  return c10::str("[rank ", rank_of(exercise), "/", world_of(exercise), "] ", name, " of ", exercise.first.nbytes(),
                  " bytes");
}

/// Fills a tensor with NaN, so that old values are not taken for a result.
void spoil(const at::Tensor& tensor) { tensor.fill_(std::numeric_limits<float>::quiet_NaN()); }

/// Returns the number of elements of one rank's slice.
int64_t slice_of(const Exercise& exercise) { return exercise.first.numel() / exercise.communicator.world_size(); }
at::Tensor slices(const at::Tensor& tensor, const Exercise& exercise) {
  return tensor.narrow(0, 0, slice_of(exercise) * exercise.communicator.world_size());
}
int64_t own_begin(const Exercise& exercise) { return slice_of(exercise) * exercise.communicator.rank(); }
at::Tensor slice_buffer(const Exercise& exercise) { return exercise.second.narrow(0, 0, slice_of(exercise)); }

void fill_first_and_spoil_second(const Exercise& exercise) {
  fill(exercise.first, own_key(exercise));
  spoil(exercise.second);
}

const CollectiveCase kAllGather = {
    .name = "all_gather",
    .bus_share = [](int world) { return (world - 1.0) / world; },
    .prepare =
        [](const Exercise& exercise) {
          spoil(exercise.first);
          fill(slice_buffer(exercise), own_key(exercise), own_begin(exercise));
        },
    .run =
        [](const Exercise& exercise) {
          exercise.communicator.all_gather(slices(exercise.first, exercise), slice_buffer(exercise), {})->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          const int64_t slice = slice_of(exercise);
          for (uint32_t rank = 0; rank < world_of(exercise); ++rank) {
            expect_sum(exercise.first.narrow(0, rank * slice, slice), place(exercise, "all_gather"), rank, rank + 1,
                       exercise.round, rank * slice);
          }
        },
};

const CollectiveCase kReduceScatter = {
    .name = "reduce_scatter",
    .bus_share = [](int world) { return (world - 1.0) / world; },
    .prepare =
        [](const Exercise& exercise) {
          fill(exercise.first, own_key(exercise));
          spoil(slice_buffer(exercise));
        },
    .run =
        [](const Exercise& exercise) {
          exercise.communicator.reduce_scatter(slice_buffer(exercise), slices(exercise.first, exercise), {})->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          expect_sum(slice_buffer(exercise), place(exercise, "reduce_scatter"), 0, world_of(exercise), exercise.round,
                     own_begin(exercise));
        },
};

const CollectiveCase kAllToAll = {
    .name = "all_to_all",
    .bus_share = [](int world) { return (world - 1.0) / world; },
    .prepare = fill_first_and_spoil_second,
    .run =
        [](const Exercise& exercise) {
          exercise.communicator.all_to_all(slices(exercise.second, exercise), slices(exercise.first, exercise), {})
              ->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          const int64_t slice = slice_of(exercise);
          for (uint32_t rank = 0; rank < world_of(exercise); ++rank) {
            expect_sum(exercise.second.narrow(0, rank * slice, slice), place(exercise, "all_to_all"), rank, rank + 1,
                       exercise.round, own_begin(exercise));
          }
        },
};

const CollectiveCase kAllReduce = {
    .name = "all_reduce",
    .bus_share = [](int world) { return 2 * (world - 1.0) / world; },
    .prepare = [](const Exercise& exercise) { fill(exercise.first, own_key(exercise)); },
    .run =
        [](const Exercise& exercise) {
          exercise.communicator.all_reduce(exercise.first, fsdp::ReduceOp::kSum, {})->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          expect_sum(exercise.first, place(exercise, "all_reduce"), 0, world_of(exercise), exercise.round);
        },
};

const CollectiveCase kBroadcast = {
    .name = "broadcast",
    .bus_share = [](int) { return 1.0; },
    .prepare =
        [](const Exercise& exercise) {
          spoil(exercise.first);
          if (rank_of(exercise) == 0) fill(exercise.first, own_key(exercise));
        },
    .run = [](const Exercise& exercise) { exercise.communicator.broadcast(exercise.first, /*root=*/0, {})->wait(); },
    .verify =
        [](const Exercise& exercise) {
          expect_sum(exercise.first, place(exercise, "broadcast"), 0, 1, exercise.round);
        },
};

bool sends(const Exercise& exercise) {
  return rank_of(exercise) % 2 == 0 && rank_of(exercise) + 1 < world_of(exercise);
}
bool receives(const Exercise& exercise) { return rank_of(exercise) % 2 == 1; }

const CollectiveCase kSendRecv = {
    .name = "send_recv",
    .bus_share = [](int) { return 1.0; },
    .prepare =
        [](const Exercise& exercise) {
          if (sends(exercise)) fill(exercise.first, own_key(exercise));
          if (receives(exercise)) spoil(exercise.first);
        },
    .run =
        [](const Exercise& exercise) {
          const int rank = exercise.communicator.rank();
          if (sends(exercise)) exercise.communicator.send(exercise.first, rank + 1, {})->wait();
          if (receives(exercise)) exercise.communicator.recv(exercise.first, rank - 1, {})->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          const auto sender = rank_of(exercise) - 1;
          if (receives(exercise)) {
            expect_sum(exercise.first, place(exercise, "send_recv"), sender, sender + 1, exercise.round);
          }
        },
};

const CollectiveCase kCopy = {
    .name = "memcpy",
    .bus_share = [](int) { return 1.0; },
    .prepare = fill_first_and_spoil_second,
    .run =
        [](const Exercise& exercise) {
          std::memcpy(exercise.second.mutable_data_ptr(), exercise.first.const_data_ptr(), exercise.first.nbytes());
        },
    .verify =
        [](const Exercise& exercise) {
          const auto rank = rank_of(exercise);
          expect_sum(exercise.second, place(exercise, "memcpy"), rank, rank + 1, exercise.round);
        },
};

}  // namespace

std::span<const CollectiveCase> collective_cases() {
  static const std::array cases = {kAllGather, kReduceScatter, kAllReduce, kAllToAll, kBroadcast, kSendRecv};
  return cases;
}

const CollectiveCase& copy_case() { return kCopy; }

}  // namespace bench
