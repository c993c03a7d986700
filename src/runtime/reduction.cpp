#include "runtime/reduction.h"

#include <c10/util/StringUtil.h>

#include <exception>
#include <mutex>
#include <utility>

#include "comm/core/rank_ordered_sum.h"

namespace fsdp::runtime {
namespace {

class OverShardAxis : public Reduction {
 public:
  explicit OverShardAxis(const Placement& placement) : placement_(placement) {}

  std::shared_ptr<Work> start(const at::Tensor& rows, std::vector<Piece> pieces, std::span<const int64_t> offsets,
                              double scale, Tag tag) const override {
    return placement_.shard().reductions().reduce_scatter(rows, std::move(pieces), offsets, scale, std::move(tag));
  }

 private:
  const Placement& placement_;
};

// The second step of a reduction: this rank's rows, summed over the replicas.
//
// Note [When the second step begins]. The first step's communicator begins it as soon as that step is done, on the
// thread that finds so and without waiting for anybody. So on every rank the second steps come in the order of the
// first ones, nobody has to come by, and a rank that waits for something else keeps no replica waiting.
class OverReplicas {
 public:
  OverReplicas(std::shared_ptr<ProcessGroup> replicas, at::Tensor rows, double scale, Tag tag)
      : replicas_(std::move(replicas)), rows_(std::move(rows)), scale_(scale), tag_(std::move(tag)) {}

  /// With the votes of the first step.
  void begin(std::span<const uint8_t> votes) noexcept {
    try {
      tag_.votes.assign(votes.begin(), votes.end());
      work_ = replicas_->reductions().all_reduce(rows_, ReduceOp::kSum, tag_);
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void wait() {
    if (error_) std::rethrow_exception(error_);
    work_->wait();
    std::call_once(is_scaled_, [&] { scale_in_place(rows_, scale_); });
  }
  std::span<const uint8_t> votes() const { return work_->votes(); }

 private:
  const std::shared_ptr<ProcessGroup> replicas_;
  const at::Tensor rows_;
  const double scale_;
  Tag tag_;
  std::shared_ptr<Work> work_;
  std::exception_ptr error_;
  std::once_flag is_scaled_;
};

class OverBothAxes : public Reduction {
 public:
  explicit OverBothAxes(const Placement& placement) : placement_(placement), over_shard_axis_(placement) {}

  std::shared_ptr<Work> start(const at::Tensor& rows, std::vector<Piece> pieces, std::span<const int64_t> offsets,
                              double scale, Tag tag) const override {
    rows.zero_();  // a replica none of whose ranks has a gradient leaves them so
    auto second = std::make_shared<OverReplicas>(placement_.replicate(), rows, scale, tag);
    auto first = over_shard_axis_.start(rows, std::move(pieces), offsets, 1.0, std::move(tag));
    first->then([second](std::span<const uint8_t> votes) { second->begin(votes); });
    return std::make_shared<BothSteps>(std::move(first), std::move(second));
  }

 private:
  class BothSteps : public Work {
   public:
    BothSteps(std::shared_ptr<Work> first, std::shared_ptr<OverReplicas> second)
        : first_(std::move(first)), second_(std::move(second)) {}
    void wait() override {
      first_->wait();
      second_->wait();
    }
    bool lets_others_go_on() const override { return first_->lets_others_go_on(); }
    std::span<const uint8_t> votes() const override { return second_->votes(); }

   private:
    const std::shared_ptr<Work> first_;
    const std::shared_ptr<OverReplicas> second_;
  };

  const Placement& placement_;
  const OverShardAxis over_shard_axis_;
};

}  // namespace

std::unique_ptr<const Reduction> reduction_over(const Placement& placement) {
  if (placement.replicate()) return std::make_unique<OverBothAxes>(placement);
  return std::make_unique<OverShardAxis>(placement);
}

ReductionInFlight reduce(const Reduction& reduction, const GroupIdentity& group, FlatParams& flat,
                         Contribution contribution, std::optional<double> divide_factor) {
  auto& [pieces, votes, charges] = contribution;
  Tag tag = group.tag(group.name, std::move(votes));
  if (divide_factor) tag.subject += c10::str(" divided by ", *divide_factor);  // or ranks could differ unseen
  const auto& placement = group.placement;
  auto output = flat.allocate_gradient();
  auto work = reduction.start(output.tensor(), std::move(pieces), flat.layout().boundaries,
                              1.0 / divide_factor.value_or(placement.divisor()), std::move(tag));
  return {0, std::move(charges), std::move(output), std::move(work)};
}

}  // namespace fsdp::runtime
