#include "comm/c10d/hierarchical_exchange.h"

#include <ATen/ops/empty.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <cstring>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// A reduce_scatter cuts slices into parts of about as many bytes, alike on every rank.
constexpr int64_t kPartBytes = int64_t{2} << 20;

// The slices of some ranks, of one buffer.
at::Tensor slices_of(const at::Tensor& flat, std::span<const int64_t> offsets, RankRange ranks) {
  return flat.narrow(0, offsets[ranks.begin], offsets[ranks.end] - offsets[ranks.begin]);
}

}  // namespace

/// One of equally many parts of each slice.
struct HierarchicalExchange::Part {
  int64_t number, count;
  std::pair<int64_t, int64_t> of(int64_t begin, int64_t end) const {
    const int64_t length = end - begin;
    return {begin + length * number / count, begin + length * (number + 1) / count};
  }
};

/// Messages with what they carry.
struct HierarchicalExchange::OnTheWay {
  std::vector<at::Tensor> sums;
  Transfers transfers;
};

/// The slices of a host's ranks, and where in them lies what each rank of this host stands for.
struct HierarchicalExchange::Slices {
  at::Tensor flat;
  std::vector<int64_t> offsets;
};

HierarchicalExchange::Slices HierarchicalExchange::slices_of_host(const at::Tensor& flat,
                                                                  std::span<const int64_t> offsets, int host) const {
  Slices slices{slices_of(flat, offsets, grid_->ranks_of(host)), {0}};
  for (int number = 0; number < grid_->own_ranks().size(); ++number)
    slices.offsets.push_back(offsets[grid_->charges(host, number).end] - offsets[grid_->ranks_of(host).begin]);
  return slices;
}

void HierarchicalExchange::gather_inside(const at::Tensor& output, std::span<const int64_t> offsets, int host) const {
  const auto slices = slices_of_host(output, offsets, host);
  const auto own = slices_of(output, offsets, grid_->charges(host));
  inside_->run(
      [&](Communicator& ranks) { ranks.all_gather(slices.flat, own, slices.offsets, {"slices", {}})->wait(); });
}

// For each other host, the slices that this rank is a deputy for.
std::vector<HierarchicalExchange::Transfers> HierarchicalExchange::receive_slices(
    const at::Tensor& output, std::span<const int64_t> offsets) const {
  std::vector<Transfers> incoming;
  for (const int host : grid_->others()) {
    const auto charges = grid_->charges(host);
    auto& transfers = incoming.emplace_back();
    for (int source = charges.begin; source < charges.end; ++source)
      transfers.push_back(wire().recv(slice_of(output, offsets, source), source, kData));
  }
  return incoming;
}

HierarchicalExchange::Transfers HierarchicalExchange::send_to_deputies(const at::Tensor& slice) const {
  Transfers sent;
  for (const int host : grid_->others()) sent.push_back(wire().send(slice, grid_->deputy_on(host), kData));
  return sent;
}

void HierarchicalExchange::gather_for_host(const at::Tensor& output, const at::Tensor& input,
                                           std::span<const int64_t> offsets) {
  const auto incoming = receive_slices(output, offsets);
  const auto sent = send_to_deputies(input);
  place_own_slice(output, input, offsets);
  fault_point("gather sent");
  for (const auto& transfers : incoming)
    for (const auto& transfer : transfers) wire().wait(transfer);
  for (const auto& transfer : sent) wire().wait(transfer);
}

void HierarchicalExchange::all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> offsets) {
  const auto incoming = receive_slices(output, offsets);
  const auto sent = send_to_deputies(input);
  place_own_slice(output, input, offsets);
  fault_point("gather sent");
  gather_inside(output, offsets, grid_->own_host());
  for (size_t i = 0; i < incoming.size(); ++i) {
    for (const auto& transfer : incoming[i]) wire().wait(transfer);
    gather_inside(output, offsets, grid_->others()[i]);
  }
  for (const auto& transfer : sent) wire().wait(transfer);
}

// This host's sum of one part of what it has for the charges of this rank on `host`, one slice behind the other.
void HierarchicalExchange::reduce_inside(const at::Tensor& output, std::span<const Piece> input,
                                         std::span<const int64_t> offsets, int host, Part part) const {
  std::vector<Piece> pieces;
  std::vector<int64_t> bounds{0};
  for (int number = 0; number < grid_->own_ranks().size(); ++number) {
    const auto charges = grid_->charges(host, number);
    bounds.push_back(bounds.back());
    for (int peer = charges.begin; peer < charges.end; ++peer) {
      const auto [begin, end] = part.of(offsets[peer], offsets[peer + 1]);
      for (auto& piece : cut(input, begin, end)) pieces.push_back({bounds.back() + piece.first, piece.values});
      bounds.back() += end - begin;
    }
  }
  inside_->run([&](Communicator& ranks) {
    ranks.reduce_scatter(output, std::move(pieces), bounds, 1.0, {"slices", {}})->wait();
  });
}

// A part is on its way while the next one is summed.
void HierarchicalExchange::send_sums(std::span<const Piece> input, std::span<const int64_t> offsets, int host,
                                     int64_t parts, const at::TensorOptions& options, OnTheWay& sent) const {
  const auto charges = grid_->charges(host);
  for (int64_t number = 0; number < parts; ++number) {
    const Part part{number, parts};
    std::vector<int64_t> ends{0};
    for (int peer = charges.begin; peer < charges.end; ++peer) {
      const auto [begin, end] = part.of(offsets[peer], offsets[peer + 1]);
      ends.push_back(ends.back() + end - begin);
    }
    const at::Tensor sum = sent.sums.emplace_back(at::empty({ends.back()}, options));
    reduce_inside(sum, input, offsets, host, part);
    for (int peer = charges.begin; peer < charges.end; ++peer) {
      fault_point("chunk sent");
      sent.transfers.push_back(wire().send(slice_of(sum, ends, peer - charges.begin), peer, kData));
    }
  }
}

void HierarchicalExchange::sum_scatter(const at::Tensor& output, std::vector<Piece> input,
                                       std::span<const int64_t> offsets) {
  const int64_t parts = 1 + largest_slice(offsets) * static_cast<int64_t>(output.element_size()) / kPartBytes;
  std::vector<at::Tensor> by_host(static_cast<size_t>(grid_->count()));
  Transfers incoming;
  OnTheWay sent;
  for (const int host : grid_->others()) {
    const auto theirs = by_host[static_cast<size_t>(host)] = at::empty_like(output);
    for (int64_t number = 0; number < parts; ++number) {
      const auto [begin, end] = Part{number, parts}.of(0, theirs.numel());
      incoming.push_back(wire().recv(theirs.narrow(0, begin, end - begin), grid_->deputy_on(host), kData));
    }
  }
  for (const int host : grid_->others()) send_sums(input, offsets, host, parts, output.options(), sent);
  const int own_host = grid_->own_host();
  by_host[static_cast<size_t>(own_host)] = output;
  reduce_inside(output, input, offsets, own_host, {0, 1});
  for (const auto& transfer : incoming) wire().wait(transfer);
  reduce_in_rank_order(output, by_host, own_host, ReduceOp::kSum);
  for (const auto& transfer : sent.transfers) wire().wait(transfer);
}

void HierarchicalExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> offsets, ReduceOp op) {
  if (op != ReduceOp::kSum || !output.is_floating_point())
    return DirectExchange::reduce_scatter(output, input, offsets, op);
  // No sum may lie in what is summed.
  const bool lies_in_input = output.const_data_ptr() == slice_of(input, offsets, rank_).const_data_ptr();
  const at::Tensor sum = lies_in_input ? at::empty_like(output) : output;
  sum_scatter(sum, {{0, input}}, offsets);
  if (lies_in_input && sum.numel() > 0) std::memcpy(output.mutable_data_ptr(), sum.const_data_ptr(), sum.nbytes());
}

void HierarchicalExchange::broadcast(const at::Tensor& tensor, int root) {
  std::vector<Wire::Transfer> sent;
  const bool roots_host = grid_->is_inside(root);
  const int first = grid_->own_ranks().begin;
  fault_point("broadcast spreading");
  if (rank_ == root) {
    for (const int host : grid_->others()) sent.push_back(wire().send(tensor, grid_->ranks_of(host).begin, kData));
  } else if (!roots_host && rank_ == first) {
    wire().wait(wire().recv(tensor, root, kData));
  }
  inside_->run([&](Communicator& ranks) {
    ranks.broadcast(tensor, (roots_host ? root : first) - first, {"tensor", {}})->wait();
  });
  for (const auto& transfer : sent) wire().wait(transfer);
}

}  // namespace fsdp
