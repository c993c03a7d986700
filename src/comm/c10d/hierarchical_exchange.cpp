#include "comm/c10d/hierarchical_exchange.h"

#include <ATen/ops/empty.h>

#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"
#include "comm/core/rank_ordered_sum.h"

#include <vector>

namespace fsdp {
namespace {

constexpr auto kData = Wire::Channel::kData;

// The slices of some ranks, of one buffer.
at::Tensor slices_of(const at::Tensor& flat, std::span<const int64_t> offsets, RankRange ranks) {
  return flat.narrow(0, offsets[ranks.begin], offsets[ranks.end] - offsets[ranks.begin]);
}

}  // namespace

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

// This host's sum of what it has for the charges of this rank on `host`.
at::Tensor HierarchicalExchange::reduce_inside(const at::Tensor& output, const at::Tensor& input,
                                               std::span<const int64_t> offsets, int host) const {
  const auto slices = slices_of_host(input, offsets, host);
  inside_->run(
      [&](Communicator& ranks) { ranks.reduce_scatter(output, slices.flat, slices.offsets, {"slices", {}})->wait(); });
  return output;
}

void HierarchicalExchange::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> offsets, ReduceOp op) {
  if (op != ReduceOp::kSum || !output.is_floating_point())
    return DirectExchange::reduce_scatter(output, input, offsets, op);
  const auto memory = [&](int64_t numel) { return at::empty({numel}, output.options()); };
  std::vector<at::Tensor> by_host(static_cast<size_t>(grid_->count())), sums;
  std::vector<Wire::Transfer> incoming, sent;
  for (const int host : grid_->others()) {
    auto& theirs = by_host[static_cast<size_t>(host)] = memory(output.numel());
    incoming.push_back(wire().recv(theirs, grid_->deputy_on(host), kData));
  }
  for (const int host : grid_->others()) {
    const auto charges = grid_->charges(host);
    const int64_t begin = offsets[charges.begin];
    sums.push_back(reduce_inside(memory(offsets[charges.end] - begin), input, offsets, host));
    for (int peer = charges.begin; peer < charges.end; ++peer) {
      fault_point("chunk sent");
      sent.push_back(
          wire().send(sums.back().narrow(0, offsets[peer] - begin, offsets[peer + 1] - offsets[peer]), peer, kData));
    }
  }
  // No sum may lie in what is summed.
  const bool lies_in_input = output.const_data_ptr() == slice_of(input, offsets, rank_).const_data_ptr();
  by_host[static_cast<size_t>(grid_->own_host())] =
      reduce_inside(lies_in_input ? memory(output.numel()) : output, input, offsets, grid_->own_host());
  for (const auto& transfer : incoming) wire().wait(transfer);
  reduce_in_rank_order(output, by_host, grid_->own_host(), op);
  for (const auto& transfer : sent) wire().wait(transfer);
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
