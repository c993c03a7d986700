#pragma once
/// \file
/// How the data of a collective moves: by messages, over several hosts, or by a device's backend.

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

/// Runs in the lane's thread, where results are in place when the operation's mail is finished; on an accelerator in
/// the caller's, where a call returns when it is issued, so that the current stream will have the result. See
/// Communicator for the arguments.
class Exchange {
 public:
  using GatherPlanes = std::span<const GatherPlane>;
  using ReducePlanes = std::span<const ReducePlane>;

  virtual ~Exchange() = default;
  virtual void all_gather(GatherPlanes planes) = 0;
  /// Does not scale the sums. The input of each plane is a single piece, but for a HierarchicalExchange.
  virtual void reduce_scatter(ReducePlanes planes) = 0;
  /// Flat tensors, in place.
  virtual void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) = 0;
  virtual void all_to_all(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void broadcast(const at::Tensor& tensor, int root) = 0;
  virtual void send(const at::Tensor& tensor, int peer) = 0;
  virtual void recv(const at::Tensor& tensor, int peer) = 0;
};

/// Reduces what each rank contributes, tensor by tensor, in rank order; see reduce_in_rank_order.
void reduce_each(std::span<const at::Tensor> outputs, std::span<const std::vector<at::Tensor>> contributions, int own,
                 ReduceOp op);

/// Every rank exchanges with every other one by messages, but for a broadcast, which goes along a binomial tree, and a
/// barrier; sums in rank order. CPU only.
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
  /// Returns when every rank has come to this operation.
  void barrier();

 protected:
  const std::shared_ptr<Mail> mail_;
  const int rank_, world_size_;

 private:
  /// For each rank, a tensor for each plane.
  using SlicesFor = std::function<std::vector<at::Tensor>(int rank)>;
  void swap(const SlicesFor& outgoing, const SlicesFor& incoming);
  void reduce(const SlicesFor& inputs, const std::vector<at::Tensor>& outputs, ReduceOp op);
  /// The rank that comes so many places later.
  int after(int places) const { return (rank_ + places + world_size_) % world_size_; }
};

/// Note [Two levels]. Each byte crosses between two hosts once, over as many connections as a host has ranks.
///
/// - all_gather: a rank sends its slices to its counterpart on each other host, and the ranks of a host pass on to each
///   other what came to them; into memory that they share it comes once, and nothing is passed on.
/// - reduce_scatter: the ranks of a host sum what they have for another host's ranks, and each of them sends the sum
///   to its counterpart there.
/// - broadcast: the root sends to the first rank of each other host.
///
/// A sum is taken in rank order inside each host and then in the order of hosts. Maxima, minima, sums of integers,
/// all_to_all and messages go directly from rank to rank. Before anything happens inside a host its ranks send each
/// other headers.
class HierarchicalExchange : public DirectExchange {
 public:
  /// `host`: the ranks of this rank's host, which errors call by the global ranks that they have among `ranks`.
  HierarchicalExchange(std::shared_ptr<Mail> mail, std::shared_ptr<Communicator> host, const HostGrid& grid,
                       Ranks ranks)
      : DirectExchange(std::move(mail), ranks.rank, ranks.world_size),
        host_(std::move(host)),
        grid_(grid),
        ranks_(std::move(ranks)) {}

  void all_gather(GatherPlanes planes) override;
  /// The same into outputs that the ranks of each host share.
  void gather_for_host(GatherPlanes planes);
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  /// Runs `act`, which waits for what it begins, among the ranks of this host. Waiting there ends as waiting for
  /// messages does, and what goes wrong is told as if a connection had broken, so that the roll call alone says who is
  /// to blame.
  void run_inside(const std::function<void(Communicator& host)>& act) const;

 private:
  using SumsByHost = std::vector<std::vector<at::Tensor>>;
  void meet_host() const;
  void gather(GatherPlanes planes, const std::function<void(int host)>& arrived) const;
  void gather_inside(GatherPlanes planes, int host) const;
  void sum_inside(ReducePlanes planes, int host, int64_t part, int64_t parts, std::span<const at::Tensor> sums) const;
  void send_sums(ReducePlanes planes, int host, int64_t parts) const;
  SumsByHost receive_sums(ReducePlanes planes, int64_t parts) const;
  void sum(std::span<const at::Tensor> flats);

  const std::shared_ptr<Communicator> host_;
  const HostGrid grid_;
  const Ranks ranks_;
};

/// Leaves the order of a sum to the backend. The tensors of a call are issued as one where the backend can do so. All
/// of it is merely issued: the current stream has the result, and the host waits for nothing.
class NativeExchange : public Exchange {
 public:
  explicit NativeExchange(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  void all_gather(GatherPlanes planes) override;
  void reduce_scatter(ReducePlanes planes) override;
  void all_reduce(std::span<const at::Tensor> flats, ReduceOp op) override;
  void all_to_all(const at::Tensor& output, const at::Tensor& input) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void send(const at::Tensor& tensor, int peer) override;
  void recv(const at::Tensor& tensor, int peer) override;

 private:
  using Begin = std::function<c10::intrusive_ptr<c10d::Work>()>;
  /// Runs what begins a collective each, as one; the current stream waits for it.
  void run(const std::vector<Begin>& all);
  /// Runs `begin`, a broadcast or a message, on the bytes of `tensor`; no bytes need no message.
  void move(const at::Tensor& tensor,
            const std::function<c10::intrusive_ptr<c10d::Work>(std::vector<at::Tensor>&)>& begin);

  const c10::intrusive_ptr<c10d::Backend> backend_;
};

}  // namespace fsdp
