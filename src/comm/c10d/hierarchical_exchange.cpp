#include "comm/c10d/exchange.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <fsdp/error.h>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"

#include <stdexcept>

namespace fsdp {
namespace {

// Approximate size in bytes of the parts into which a reduce_scatter cuts slices, the same on all ranks.
constexpr int64_t kPartBytes = int64_t{2} << 20;

// Returns the first element of a part when a slice of `length` elements is cut into `parts` parts. A part ends where
// the next one begins.
int64_t begin_of(int64_t part, int64_t parts, int64_t length) { return length * part / parts; }
int64_t length_of(int64_t part, int64_t parts, int64_t length) {
  return begin_of(part + 1, parts, length) - begin_of(part, parts, length);
}

}  // namespace

void HierarchicalExchange::run_inside(const std::function<void(Communicator&)>& act) const {
  try {
    mail_->wait_elsewhere(
        [&] { act(*host_); },
        [host = host_] { host->fail("a collective of several hosts", "the collective was interrupted."); });
  } catch (const Error& error) {
    if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) mail_->blame(ranks_.number_of(lost->rank()));
    throw std::runtime_error(first_line(error.what()));
  }
}

// Sends headers to this rank's counterparts and to the ranks of its host, and waits for the headers of its host's
// ranks. So ranks whose operations differ find out before they do anything inside the host.
void HierarchicalExchange::meet_host() const {
  for (const int host : grid_.others()) mail_->send(grid_.counterpart_on(host));
  const int first = grid_.first_on(grid_.own_host());
  for (int step = 1; step < grid_.ranks_per_host; ++step) mail_->send(first + (rank_ + step) % grid_.ranks_per_host);
  for (int step = 1; step < grid_.ranks_per_host; ++step) mail_->check(first + (rank_ + step) % grid_.ranks_per_host);
}

// Calls `arrived` for each host when the slices of this rank's counterpart on that host have arrived.
void HierarchicalExchange::gather(GatherPlanes planes, const std::function<void(int host)>& arrived) const {
  const auto inputs = parcels_of(inputs_of(planes));
  for (const int host : grid_.others()) mail_->send(grid_.counterpart_on(host), inputs);
  meet_host();
  for (const int host : grid_.others()) {
    const int peer = grid_.counterpart_on(host);
    mail_->receive(peer, parcels_of(slices_of(planes, peer)));
  }
  mail_->agree();
  copy_bytes(slices_of(planes, rank_), inputs_of(planes));
  fault_point("gather sent");
  arrived(grid_.own_host());
  for (const int host : grid_.others()) {
    for (size_t i = 0; i < inputs.size(); ++i) mail_->wait(grid_.counterpart_on(host));
    arrived(host);
  }
}

void HierarchicalExchange::gather_for_host(GatherPlanes planes) {
  gather(planes, [](int) {});
  run_inside([](Communicator& ranks) { ranks.barrier({"slices"})->wait(); });
}

void HierarchicalExchange::all_gather(GatherPlanes planes) {
  gather(planes, [&](int host) {
    std::vector<GatherPlane> passed_on;
    for (const auto& [output, input] : planes) {
      const int64_t length = input.numel();
      passed_on.push_back({output.narrow(0, grid_.first_on(host) * length, grid_.ranks_per_host * length),
                           slice_of(output, length, grid_.counterpart_on(host))});
    }
    run_inside([&](Communicator& ranks) { ranks.all_gather(passed_on, {"slices"})->wait(); });
  });
}

// Sums this host's contributions to one part of the slice that belongs to this rank's counterpart on `host`.
void HierarchicalExchange::sum_inside(ReducePlanes planes, int host, int64_t part, int64_t parts,
                                      std::span<const at::Tensor> sums) const {
  std::vector<ReducePlane> within;
  for (size_t i = 0; i < planes.size(); ++i) {
    const int64_t slice = planes[i].output.numel(), length = length_of(part, parts, slice);
    auto& [sum, pieces] = within.emplace_back(ReducePlane{sums[i], {}});
    for (int number = 0; number < grid_.ranks_per_host; ++number) {
      const int64_t begin = (grid_.first_on(host) + number) * slice + begin_of(part, parts, slice);
      for (auto& piece : cut(planes[i].input, begin, begin + length))
        pieces.push_back({number * length + piece.first, piece.values});
    }
  }
  run_inside([&](Communicator& ranks) { ranks.reduce_scatter(std::move(within), 1.0, {"slices"})->wait(); });
}

// Hosts exchange their sums part by part: a part is on its way while the next one is summed.
void HierarchicalExchange::reduce_scatter(ReducePlanes planes) {
  const auto outputs = outputs_of(planes);
  const int64_t parts = 1 + bytes_of(outputs) / kPartBytes;
  const auto part_of = [parts](const std::vector<at::Tensor>& sums, int64_t part) {
    std::vector<at::Tensor> slices;
    for (const auto& sum : sums)
      slices.push_back(sum.narrow(0, begin_of(part, parts, sum.numel()), length_of(part, parts, sum.numel())));
    return slices;
  };
  meet_host();
  std::vector<std::vector<at::Tensor>> by_host(static_cast<size_t>(grid_.hosts));
  for (const int host : grid_.others()) {
    auto& theirs = by_host[static_cast<size_t>(host)];
    for (const auto& output : outputs) theirs.push_back(at::empty_like(output));
    for (int64_t part = 0; part < parts; ++part)
      mail_->receive(grid_.counterpart_on(host), parcels_of(part_of(theirs, part)));
  }
  mail_->agree();
  for (const int host : grid_.others()) {
    for (int64_t part = 0; part < parts; ++part) {
      std::vector<at::Tensor> sums;
      for (const auto& slice : part_of(outputs, part)) sums.push_back(at::empty_like(slice));
      sum_inside(planes, host, part, parts, sums);
      fault_point("chunk sent");
      mail_->send(grid_.counterpart_on(host), parcels_of(sums));
    }
  }
  by_host[static_cast<size_t>(grid_.own_host())] = outputs;
  sum_inside(planes, grid_.own_host(), 0, 1, outputs);
  mail_->finish();
  reduce_each(outputs, by_host, grid_.own_host(), ReduceOp::kSum);
}

// Sums by a reduce-scatter and an all-gather. A tensor that cannot be cut into equal slices is gathered into a longer
// one and copied back.
void HierarchicalExchange::sum(std::span<const at::Tensor> flats) {
  std::vector<ReducePlane> contributions;
  std::vector<GatherPlane> sums;
  for (const auto& flat : flats) {
    const int64_t length = divide_up(flat.numel(), world_size_);
    const at::Tensor whole =
        length * world_size_ == flat.numel() ? flat : at::zeros({length * world_size_}, flat.options());
    // The sums need memory of their own: the output of a reduce-scatter must not overlap its input.
    contributions.push_back({at::empty({length}, flat.options()), {{0, flat}}});
    sums.push_back({whole, contributions.back().output});
  }
  reduce_scatter(contributions);
  all_gather(sums);
  for (size_t i = 0; i < flats.size(); ++i)
    copy_bytes(flats[i].mutable_data_ptr(), sums[i].output.const_data_ptr(), flats[i].nbytes());
}

void HierarchicalExchange::all_reduce(std::span<const at::Tensor> flats, ReduceOp op) {
  std::vector<at::Tensor> by_hosts, directly;
  for (const auto& flat : flats) {
    const bool by_host = op == ReduceOp::kSum && (flat.is_floating_point() || flat.is_complex());
    (by_host ? by_hosts : directly).push_back(by_host && flat.is_complex() ? at::view_as_real(flat).view({-1}) : flat);
  }
  if (!by_hosts.empty()) sum(by_hosts);
  if (!directly.empty()) DirectExchange::all_reduce(directly, op);
}

void HierarchicalExchange::broadcast(const at::Tensor& tensor, int root) {
  const auto parcels = parcels_of({&tensor, 1});
  const bool roots_host = grid_.is_inside(root);
  const int first = grid_.first_on(grid_.own_host());
  const bool receives = !roots_host && rank_ == first;
  fault_point("broadcast spreading");
  if (rank_ == root)
    for (const int host : grid_.others()) mail_->send(grid_.first_on(host), parcels);
  if (receives) mail_->send(root);
  meet_host();
  if (receives) {
    mail_->receive(root, parcels);
    if (!parcels.empty()) mail_->wait(root);
  }
  run_inside(
      [&](Communicator& ranks) { ranks.broadcast(tensor, (roots_host ? root : first) - first, {"tensor"})->wait(); });
}

}  // namespace fsdp
