#include "collective_case.h"

#include <array>
#include <cstring>
#include <limits>
#include <vector>

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

/// So that what is left from before is not taken for a result.
void spoil(const at::Tensor& tensor) { tensor.fill_(std::numeric_limits<float>::quiet_NaN()); }

/// As equal as whole elements can be.
std::vector<int64_t> offsets_of(const Exercise& exercise) {
  const int world = exercise.communicator.world_size();
  std::vector<int64_t> offsets;
  for (int rank = 0; rank <= world; ++rank) offsets.push_back(exercise.first.numel() * rank / world);
  return offsets;
}

struct Part {
  int64_t begin, length;
};

Part own_part(const Exercise& exercise) {
  const auto offsets = offsets_of(exercise);
  const auto rank = rank_of(exercise);
  return {.begin = offsets[rank], .length = offsets[rank + 1] - offsets[rank]};
}

at::Tensor part_buffer(const Exercise& exercise) { return exercise.second.narrow(0, 0, own_part(exercise).length); }

const CollectiveCase kAllGather = {
    .name = "all_gather",
    .bus_share = [](int world) { return (world - 1.0) / world; },
    .prepare =
        [](const Exercise& exercise) {
          spoil(exercise.first);
          fill(part_buffer(exercise), own_key(exercise), own_part(exercise).begin);
        },
    .run =
        [](const Exercise& exercise) {
          exercise.communicator.all_gather(exercise.first, part_buffer(exercise), offsets_of(exercise), {})->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          const auto offsets = offsets_of(exercise);
          for (uint32_t rank = 0; rank < world_of(exercise); ++rank) {
            expect_sum(exercise.first.slice(0, offsets[rank], offsets[rank + 1]), place(exercise, "all_gather"), rank,
                       rank + 1, exercise.round, offsets[rank]);
          }
        },
};

const CollectiveCase kReduceScatter = {
    .name = "reduce_scatter",
    .bus_share = [](int world) { return (world - 1.0) / world; },
    .prepare =
        [](const Exercise& exercise) {
          fill(exercise.first, own_key(exercise));
          spoil(part_buffer(exercise));
        },
    .run =
        [](const Exercise& exercise) {
          exercise.communicator.reduce_scatter(part_buffer(exercise), exercise.first, offsets_of(exercise), {})->wait();
        },
    .verify =
        [](const Exercise& exercise) {
          expect_sum(part_buffer(exercise), place(exercise, "reduce_scatter"), 0, world_of(exercise), exercise.round,
                     own_part(exercise).begin);
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
    .prepare =
        [](const Exercise& exercise) {
          fill(exercise.first, own_key(exercise));
          spoil(exercise.second);
        },
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
  static const std::array cases = {kAllGather, kReduceScatter, kAllReduce, kBroadcast, kSendRecv};
  return cases;
}

const CollectiveCase& copy_case() { return kCopy; }

}  // namespace bench
