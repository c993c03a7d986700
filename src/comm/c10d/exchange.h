#pragma once
/// \file
/// How a collective moves data: by messages, in two levels over several hosts, or by a device's backend.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/mail.h"
#include "comm/core/host_grid.h"
#include "comm/core/ranks.h"

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace fsdp {

/// Moves the data of collectives; see Communicator for the arguments. On the CPU the calls run in the lane's thread,
/// and results are in place when the operation's mail is finished. On an accelerator they run in the caller's thread
/// and only issue the operation: the current stream waits for the result.
class Exchange {
 public:
  using GatherPlanes = std::span<const GatherPlane>;
  using ReducePlanes = std::span<const ReducePlane>;

  virtual ~Exchange() = default;
  virtual void all_gather(GatherPlanes planes) = 0;
  /// Sums without scaling. The input of each plane must be a single piece, except for a HierarchicalExchange.
  virtual void reduce_scatter(ReducePlanes planes) = 0;
  /// Reduces flat tensors in place.
  virtual void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) = 0;
  virtual void all_to_all(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void broadcast(const at::Tensor& tensor, int root) = 0;
  virtual void send(const at::Tensor& tensor, int peer) = 0;
  virtual void recv(const at::Tensor& tensor, int peer) = 0;
};

/// Reduces the contributions of each rank, which are lists of tensors, in rank order; see reduce_in_rank_order.
void reduce_each(std::span<const at::Tensor> outputs, std::span<const std::vector<at::Tensor>> contributions, int own,
                 ReduceOp op);

/// Moves data on the CPU by messages between every two ranks; sums in rank order. A broadcast goes along a binomial
/// tree, and a barrier needs messages to a few ranks only.
class DirectExchange : public Exchange {
 public:
  DirectExchange(std::shared_ptr<Mail> mail, int rank, int world_size)
      : mail_(std::move(mail)), rank_(rank), world_size_(world_size) {}

  void all_gather(GatherPlanes planes) override;
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;
  /// Returns when every rank has reached this operation.
  void barrier();

 protected:
  const std::shared_ptr<Mail> mail_;
  const int rank_, world_size_;

 private:
  /// A function that returns, for a rank, one tensor for each plane.
  using SlicesFor = std::function<std::vector<at::Tensor>(int rank)>;
  void swap(const SlicesFor& outgoing, const SlicesFor& incoming);
  void reduce(const SlicesFor& inputs, const std::vector<at::Tensor>& outputs, ReduceOp op);
  /// Returns the rank that is `places` places later, counting in a ring.
  int after(int places) const { return (rank_ + places + world_size_) % world_size_; }
};

/// Note [Two levels]. Each byte crosses between two hosts once, over as many connections as a host has ranks.
///
/// - all_gather: a rank sends its slices to its counterpart (see HostGrid) on each other host, and the ranks of a host
///   pass the slices that they received on to each other. If the output is memory that the ranks of a host share, each
///   slice arrives in it once and is not passed on.
/// - reduce_scatter: for each other host, the ranks of a host sum their contributions to that host's slices, and each
///   rank sends its part of the sums to its counterpart there.
/// - broadcast: the root sends to the first rank of each other host.
///
/// A sum is taken in rank order within each host and then in the order of hosts. Maxima, minima, sums of integers,
/// all_to_all and messages go directly from rank to rank. The ranks of a host exchange headers before they do anything
/// inside the host.
class HierarchicalExchange : public DirectExchange {
 public:
  /// `host` is the communicator of this host's ranks. Its error messages name ranks by their global numbers in
  /// `ranks`.
  HierarchicalExchange(std::shared_ptr<Mail> mail, std::shared_ptr<Communicator> host, const HostGrid& grid,
                       Ranks ranks)
      : DirectExchange(std::move(mail), ranks.rank, ranks.world_size),
        host_(std::move(host)),
        grid_(grid),
        ranks_(std::move(ranks)) {}

  void all_gather(GatherPlanes planes) override;
  /// Gathers into outputs that the ranks of each host share.
  void gather_for_host(GatherPlanes planes);
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  /// Runs `act`, which starts collectives on the host's communicator and waits for them. Mail::interrupt() ends these
  /// waits too. An error of `act` is rethrown like the error of a broken connection, so that only the roll call decides
  /// which rank is to blame.
  void run_inside(const std::function<void(Communicator& host)>& act) const;

 private:
  void meet_host() const;
  void gather(GatherPlanes planes, const std::function<void(int host)>& arrived) const;
  void sum_inside(ReducePlanes planes, int host, int64_t part, int64_t parts, std::span<const at::Tensor> sums) const;
  void sum(std::span<const at::Tensor> flats);

  const std::shared_ptr<Communicator> host_;
  const HostGrid grid_;
  const Ranks ranks_;
};

/// Makes an exchange that moves data on a device by its backend's own collectives, which choose the order of sums. The
/// tensors of one call are issued as one if the backend supports this. Calls only issue operations: the current stream
/// waits for the result, and the host does not wait.
std::unique_ptr<Exchange> make_native_exchange(c10::intrusive_ptr<c10d::Backend> backend);

}  // namespace fsdp
