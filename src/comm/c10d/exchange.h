#pragma once
/// \file
/// How the data of a collective moves.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include "comm/c10d/mail.h"

#include <functional>
#include <memory>
#include <span>
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
      : rank_(rank), world_size_(world_size), mail_owner_(std::move(mail)), mail_(*mail_owner_) {}

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
  Mail& mail() const { return mail_; }

  const int rank_, world_size_;

 private:
  /// For each rank, a tensor for each plane.
  using SlicesFor = std::function<std::vector<at::Tensor>(int rank)>;
  void swap(const SlicesFor& outgoing, const SlicesFor& incoming);
  void reduce(const SlicesFor& inputs, const std::vector<at::Tensor>& outputs, ReduceOp op);
  /// The rank that comes so many places later.
  int after(int places) const { return (rank_ + places + world_size_) % world_size_; }

  const std::shared_ptr<Mail> mail_owner_;
  Mail& mail_;
};

}  // namespace fsdp
