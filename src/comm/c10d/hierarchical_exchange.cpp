#include "comm/c10d/hierarchical_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <fsdp/error.h>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "comm/core/pieces.h"

#include <stdexcept>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

// A reduce_scatter cuts slices into parts of about as many bytes, alike on every rank.
constexpr int64_t kPartBytes = int64_t{2} << 20;

// A view of the slices of neighbouring ranks.
at::Tensor slices_of(const at::Tensor& flat, int64_t length, RankRange ranks) {
  return flat.narrow(0, ranks.begin * length, ranks.size() * length);
}

// Where a part of a slice begins, of equally many parts of each slice; it ends where the next one begins.
int64_t begin_of(int64_t part, int64_t parts, int64_t length) { return length * part / parts; }
int64_t length_of(int64_t part, int64_t parts, int64_t length) {
  return begin_of(part + 1, parts, length) - begin_of(part, parts, length);
}

}  // namespace

void HierarchicalExchange::run_inside(const std::function<void(Communicator&)>& act) const {
  try {
    mail().wait_elsewhere([&] { act(*host_); },
                          [host = host_] { host->fail("a collective of several hosts", "it was interrupted."); });
  } catch (const PeerLost& lost) {
    mail().blame(ranks_.number_of(lost.rank()));
    throw std::runtime_error(first_line(lost.what()));
  } catch (const Error& error) {
    throw std::runtime_error(first_line(error.what()));
  }
}

int HierarchicalExchange::most_charges(int host) const {
  return static_cast<int>(divide_up(grid_->ranks_of(host).size(), grid_->own_ranks().size()));
}

void HierarchicalExchange::gather_inside(GatherPlanes planes, int host) const {
  const auto theirs = grid_->ranks_of(host), charges = grid_->charges(host);
  const int here = grid_->own_ranks().size(), most = most_charges(host);
  const bool fits = most * here == theirs.size();
  std::vector<GatherPlane> passed_on;
  for (const auto& [output, input] : planes) {
    const int64_t length = input.numel();
    const at::Tensor whole =
        fits ? slices_of(output, length, theirs) : at::empty({here * most * length}, output.options());
    const at::Tensor own = slice_of(whole, most * length, rank_ - grid_->own_ranks().begin);
    if (!fits) copy_bytes(own, slices_of(output, length, charges));
    passed_on.push_back({whole, own});
  }
  run_inside([&](Communicator& ranks) { ranks.all_gather(passed_on, {"slices"})->wait(); });
  if (fits) return;
  for (size_t i = 0; i < planes.size(); ++i) {
    const int64_t length = planes[i].input.numel();
    for (int number = 0; number < here; ++number) {
      const at::Tensor slices = slices_of(planes[i].output, length, grid_->charges(host, number));
      copy_bytes(slices, passed_on[i].output.narrow(0, number * most * length, slices.numel()));
    }
  }
}

// Sends headers to all with whom this rank has to do, and waits for those of its host: ranks that differ learn it from
// each other before anything happens inside of a host.
void HierarchicalExchange::meet_host() const {
  const auto send_to = [&](RankRange ranks) {
    for (int peer = ranks.begin; peer < ranks.end; ++peer)
      if (peer != rank_) mail().send(peer);
  };
  for (const int host : grid_->others()) {
    const int deputy = grid_->deputy_on(host);
    send_to({deputy, deputy + 1});
    send_to(grid_->charges(host));
  }
  const auto host = grid_->own_ranks();
  send_to(host);
  for (int peer = host.begin; peer < host.end; ++peer)
    if (peer != rank_) mail().check(peer);
}

// Calls `arrived` for each host when what this rank is a deputy for is there.
void HierarchicalExchange::gather(GatherPlanes planes, const std::function<void(int host)>& arrived) const {
  const auto inputs = parcels_of(inputs_of(planes));
  for (const int host : grid_->others()) mail().send(grid_->deputy_on(host), inputs);
  meet_host();
  const auto each_charge = [&](int host, const auto& act) {
    const auto charges = grid_->charges(host);
    for (int source = charges.begin; source < charges.end; ++source)
      act(source, parcels_of(slices_of(planes, source)));
  };
  for (const int host : grid_->others())
    each_charge(host, [&](int source, const auto& parcels) { mail().receive(source, parcels); });
  mail().agree();
  copy_bytes(slices_of(planes, rank_), inputs_of(planes));
  fault_point("gather sent");
  arrived(grid_->own_host());
  for (const int host : grid_->others()) {
    each_charge(host, [&](int source, const auto& parcels) {
      for (size_t i = 0; i < parcels.size(); ++i) mail().wait(source);
    });
    arrived(host);
  }
}

void HierarchicalExchange::gather_for_host(GatherPlanes planes) {
  gather(planes, [](int) {});
  run_inside([](Communicator& ranks) { ranks.barrier({"slices"})->wait(); });
}

void HierarchicalExchange::all_gather(GatherPlanes planes) {
  gather(planes, [&](int host) { gather_inside(planes, host); });
}

// This host's sums of one part of what it has for the charges of this rank on `host`: in each of `sums` one slice's
// part behind the other, and zeros where this rank has fewer charges than others.
void HierarchicalExchange::sum_inside(ReducePlanes planes, int host, int64_t part, int64_t parts,
                                      std::span<const at::Tensor> sums) const {
  const int most = most_charges(host);
  std::vector<ReducePlane> within;
  for (size_t i = 0; i < planes.size(); ++i) {
    const int64_t slice = planes[i].output.numel(), length = length_of(part, parts, slice);
    auto& [sum, pieces] = within.emplace_back(ReducePlane{sums[i], {}});
    for (int number = 0; number < grid_->own_ranks().size(); ++number) {
      const auto charges = grid_->charges(host, number);
      for (int peer = charges.begin; peer < charges.end; ++peer) {
        const int64_t first = (number * most + peer - charges.begin) * length;
        const int64_t begin = peer * slice + begin_of(part, parts, slice);
        for (auto& piece : cut(planes[i].input, begin, begin + length))
          pieces.push_back({first + piece.first, piece.values});
      }
    }
  }
  run_inside([&](Communicator& ranks) { ranks.reduce_scatter(std::move(within), 1.0, {"slices"})->wait(); });
}

// A part is on its way while the next one is summed.
void HierarchicalExchange::send_sums(ReducePlanes planes, int host, int64_t parts) const {
  const auto charges = grid_->charges(host);
  for (int64_t part = 0; part < parts; ++part) {
    std::vector<at::Tensor> sums;
    for (const auto& [output, input] : planes)
      sums.push_back(at::empty({most_charges(host) * length_of(part, parts, output.numel())}, output.options()));
    sum_inside(planes, host, part, parts, sums);
    for (int peer = charges.begin; peer < charges.end; ++peer) {
      fault_point("chunk sent");
      std::vector<at::Tensor> slices;
      for (size_t i = 0; i < planes.size(); ++i)
        slices.push_back(slice_of(sums[i], length_of(part, parts, planes[i].output.numel()), peer - charges.begin));
      mail().send(peer, parcels_of(slices));
    }
  }
}

// Gives memory for each host's sums, into which those of the others come part by part.
HierarchicalExchange::SumsByHost HierarchicalExchange::receive_sums(ReducePlanes planes, int64_t parts) const {
  SumsByHost by_host(static_cast<size_t>(grid_->count()));
  for (const int host : grid_->others()) {
    auto& theirs = by_host[static_cast<size_t>(host)];
    for (const auto& plane : planes) theirs.push_back(at::empty_like(plane.output));
    for (int64_t part = 0; part < parts; ++part) {
      std::vector<at::Tensor> slices;
      for (const auto& sum : theirs)
        slices.push_back(sum.narrow(0, begin_of(part, parts, sum.numel()), length_of(part, parts, sum.numel())));
      mail().receive(grid_->deputy_on(host), parcels_of(slices));
    }
  }
  return by_host;
}

void HierarchicalExchange::reduce_scatter(ReducePlanes planes) {
  const auto outputs = outputs_of(planes);
  const int64_t parts = 1 + bytes_of(outputs) / kPartBytes;
  meet_host();
  auto by_host = receive_sums(planes, parts);
  mail().agree();
  for (const int host : grid_->others()) send_sums(planes, host, parts);
  by_host[static_cast<size_t>(grid_->own_host())] = outputs;
  sum_inside(planes, grid_->own_host(), 0, 1, outputs);
  mail().finish();
  reduce_each(outputs, by_host, grid_->own_host(), ReduceOp::kSum);
}

// Sums and gathers slices; of tensors that have no equal ones, those of longer copies.
void HierarchicalExchange::sum(std::span<const at::Tensor> flats) {
  std::vector<ReducePlane> contributions;
  std::vector<GatherPlane> sums;
  for (const auto& flat : flats) {
    const int64_t length = divide_up(flat.numel(), world_size_);
    const at::Tensor whole =
        length * world_size_ == flat.numel() ? flat : at::zeros({length * world_size_}, flat.options());
    // The sums need memory of their own: a reduce-scatter must not write where its input lies.
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
  const bool roots_host = grid_->is_inside(root);
  const int first = grid_->own_ranks().begin;
  fault_point("broadcast spreading");
  if (rank_ == root) {
    for (const int host : grid_->others()) mail().send(grid_->ranks_of(host).begin, parcels);
  } else if (!roots_host && rank_ == first) {
    mail().send(root);
  }
  meet_host();
  if (!roots_host && rank_ == first) {
    mail().receive(root, parcels);
    if (!parcels.empty()) mail().wait(root);
  }
  run_inside([&](Communicator& ranks) {
    ranks.broadcast(tensor, (roots_host ? root : first) - first, {"tensor"})->wait();
  });
}

}  // namespace fsdp
