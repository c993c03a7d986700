#pragma once
/// \file
/// Checks that every communicator must pass: a table of tensors and a table of collectives. All values are small
/// integers, so their sums have the same bits in any order.

#include <gtest/gtest.h>
#include <fsdp/communicator.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::test {

/// One plane of a call; each rank's slice has `numel` elements.
struct CasePlane {
  at::ScalarType dtype;
  int64_t numel;
};
struct CasePlanes {
  std::string what;
  std::vector<CasePlane> planes;
};

/// Returns the planes for every collective. Over c10d, up to 8 KiB from one rank to another travel in one message with
/// the fingerprint; the last case is larger.
inline const std::vector<CasePlanes>& floating_planes() {
  static const std::vector<CasePlanes> all{
      {"one element", {{at::kFloat, 1}}},
      {"none", {{at::kFloat, 0}}},
      {"several dtypes that travel with the fingerprint", {{at::kBFloat16, 3}, {at::kFloat, 13}, {at::kDouble, 5}}},
      {"as much as travels with the fingerprint", {{at::kFloat, 2044}, {at::kFloat, 4}}},
      {"one element more", {{at::kFloat, 2044}, {at::kFloat, 5}}},
      {"prime lengths, and an empty plane", {{at::kFloat, 1009}, {at::kBFloat16, 7}, {at::kFloat, 0}, {at::kHalf, 1}}},
      {"more than a slot of shared memory holds", {{at::kFloat, 100'003}, {at::kBFloat16, 70'001}}}};
  return all;
}

/// Returns the planes for collectives that move values without summing them, so any dtype is allowed.
inline std::vector<CasePlanes> moved_planes() {
  auto all = floating_planes();
  all.push_back({"other dtypes",
                 {{at::kBool, 3}, {at::kLong, 77}, {at::kShort, 5}, {at::kUInt16, 1}, {at::kFloat8_e4m3fn, 9}}});
  all.push_back({"complex numbers", {{at::kComplexFloat, 3}, {at::kByte, 1}, {at::kComplexDouble, 129}}});
  return all;
}

/// Returns the planes for all-reduce, which also sums integers.
inline std::vector<CasePlanes> summed_planes() {
  auto all = floating_planes();
  all.push_back({"integers", {{at::kInt, 101}, {at::kLong, 1}, {at::kByte, 17}, {at::kShort, 3}}});
  return all;
}

/// Returns the values that `rank` contributes.
inline at::Tensor case_values(int rank, int64_t numel, at::ScalarType dtype) {
  return (at::arange(numel) * 7 + 3 * rank).remainder(11).to(at::kFloat).to(dtype);
}
/// Returns the sum of the case_values() of all ranks, on the CPU.
inline at::Tensor case_sum(int world, int64_t numel, at::ScalarType dtype) {
  auto sum = at::zeros({numel}, at::kFloat);
  for (int rank = 0; rank < world; ++rank) sum += case_values(rank, numel, at::kFloat);
  return sum.to(dtype);
}
inline void expect_bits(const at::Tensor& found, const at::Tensor& expected) {
  EXPECT_TRUE(found.cpu().view(at::kByte).equal(expected.contiguous().view(at::kByte))) << "found other values";
}

inline void check_all_gather(Communicator& ranks, const std::vector<CasePlane>& planes, c10::Device device) {
  const int world = ranks.world_size();
  for (const bool in_place : {false, true}) {
    std::vector<GatherPlane> gathered;
    for (const auto& [dtype, numel] : planes) {
      const auto output = at::zeros({world * numel}, at::TensorOptions().dtype(dtype).device(device));
      const auto own = case_values(ranks.rank(), numel, dtype).to(device);
      gathered.push_back({output, own});
      if (in_place) gathered.back().input = output.narrow(0, ranks.rank() * numel, numel).copy_(own);
    }
    ranks.all_gather(gathered, {"gather"})->wait();
    for (size_t i = 0; i < planes.size(); ++i)
      for (int rank = 0; rank < world; ++rank)
        expect_bits(gathered[i].output.narrow(0, rank * planes[i].numel, planes[i].numel),
                    case_values(rank, planes[i].numel, planes[i].dtype));
  }
}

/// Checks reduce_scatter with contributions in one piece, and with contributions in two pieces that leave a gap.
inline void check_reduce_scatter(Communicator& ranks, const std::vector<CasePlane>& planes, c10::Device device) {
  const int world = ranks.world_size();
  for (const bool has_gap : {false, true}) {
    std::vector<ReducePlane> reduced;
    std::vector<at::Tensor> expected;
    for (const auto& [dtype, numel] : planes) {
      const int64_t all = world * numel, gap = has_gap ? all / 3 : all, after = has_gap ? all / 2 : all;
      const auto own = case_values(ranks.rank(), all, dtype).to(device);
      reduced.push_back({at::full({numel}, -1, own.options()), {{0, own.narrow(0, 0, gap)}}});
      if (has_gap) reduced.back().input.push_back({after, own.narrow(0, after, all - after).clone()});
      auto sum = case_sum(world, all, at::kFloat) * 0.5;
      sum.narrow(0, gap, after - gap).zero_();
      expected.push_back(sum.narrow(0, ranks.rank() * numel, numel).to(dtype));
    }
    ranks.reduce_scatter(reduced, 0.5, {"reduce"})->wait();
    for (size_t i = 0; i < planes.size(); ++i) expect_bits(reduced[i].output, expected[i]);
  }
}

inline void check_all_reduce(Communicator& ranks, const std::vector<CasePlane>& planes, c10::Device device) {
  const int world = ranks.world_size();
  for (const auto op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    std::vector<at::Tensor> tensors, expected;
    for (const auto& [dtype, numel] : planes) {
      tensors.push_back(case_values(ranks.rank(), numel, dtype).to(device).view({1, numel}));
      auto result = case_values(0, numel, at::kFloat);
      for (int rank = 1; rank < world; ++rank) {
        const auto other = case_values(rank, numel, at::kFloat);
        result = op == ReduceOp::kMax ? at::maximum(result, other) : at::minimum(result, other);
      }
      expected.push_back(op == ReduceOp::kSum ? case_sum(world, numel, dtype) : result.to(dtype));
    }
    ranks.all_reduce(tensors, op, {"reduce"})->wait();
    for (size_t i = 0; i < planes.size(); ++i) expect_bits(tensors[i].view(-1), expected[i]);
  }
}

inline void check_all_to_all(Communicator& ranks, const std::vector<CasePlane>& planes, c10::Device device) {
  const int world = ranks.world_size();
  for (const auto& [dtype, numel] : planes) {
    const auto input = case_values(ranks.rank(), world * numel, dtype).to(device), output = at::zeros_like(input);
    ranks.all_to_all(output, input, {"exchange"})->wait();
    for (int rank = 0; rank < world; ++rank)
      expect_bits(output.narrow(0, rank * numel, numel),
                  case_values(rank, world * numel, dtype).narrow(0, ranks.rank() * numel, numel));
    expect_bits(input, case_values(ranks.rank(), world * numel, dtype));
  }
}

inline void check_broadcast(Communicator& ranks, const std::vector<CasePlane>& planes, c10::Device device) {
  for (const auto& [dtype, numel] : planes)
    for (int root = 0; root < ranks.world_size(); ++root) {
      const auto tensor = case_values(ranks.rank(), numel, dtype).to(device);
      ranks.broadcast(tensor, root, {"broadcast"})->wait();
      expect_bits(tensor, case_values(root, numel, dtype));
    }
}

inline void check_messages(Communicator& ranks, const std::vector<CasePlane>& planes, c10::Device device) {
  const int world = ranks.world_size(), rank = ranks.rank();
  const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
  if (world == 1) return;
  for (const auto& [dtype, numel] : planes) {
    const auto own = case_values(ranks.rank(), numel, dtype).to(device), received = at::zeros_like(own);
    ranks.send_recv(own, next, received, previous, {"ring"})->wait();
    expect_bits(received, case_values(previous, numel, dtype));
  }
}

/// Runs every collective with each of its cases. Collective.
inline void check_collectives(Communicator& ranks, c10::Device device = c10::kCPU) {
  using Check = void (*)(Communicator&, const std::vector<CasePlane>&, c10::Device);
  struct Row {
    const char* what;
    Check check;
    std::vector<CasePlanes> planes;
  };
  const std::vector<Row> rows{{"all_gather", check_all_gather, moved_planes()},
                              {"reduce_scatter", check_reduce_scatter, floating_planes()},
                              {"all_reduce", check_all_reduce, summed_planes()},
                              {"all_to_all", check_all_to_all, moved_planes()},
                              {"broadcast", check_broadcast, moved_planes()},
                              {"messages", check_messages, moved_planes()}};
  for (const auto& [what, check, planes] : rows)
    for (const auto& its : planes) {
      SCOPED_TRACE(c10::str("rank ", ranks.rank(), ", ", what, " of ", its.what));
      check(ranks, its.planes, device);
    }
}

}  // namespace fsdp::test
