#include "runtime/reduction.h"

#include <exception>
#include <utility>

#include "comm/core/rank_ordered_sum.h"
#include "comm/core/text.h"

namespace fsdp::runtime {
namespace {

class OverShardAxis : public Reduction {
 public:
  explicit OverShardAxis(const Placement& placement) : placement_(placement) {}

  Started start(const at::Tensor& rows, std::vector<Piece> pieces, std::span<const int64_t> offsets, double scale,
                Tag tag, const ReduceScatter& with) const override {
    auto& ranks = placement_.shard().reductions();
    if (with) return {with(ranks, rows, std::move(pieces), offsets, scale, std::move(tag))};
    return {ranks.reduce_scatter(rows, std::move(pieces), offsets, scale, std::move(tag))};
  }

 private:
  const Placement& placement_;
};

// A further step of a reduction: this rank's rows, summed over the replicas of one axis after the other.
//
// Note [When the second step begins]. The first step's communicator begins it as soon as that step is done, on the
// thread that finds so and without waiting for anybody; a third one likewise. So on every rank the second steps come in
// the order of the first ones, which is the same for all replicas, nobody has to come by, and a rank that waits for
// something else keeps no replica waiting. What other threads do over the replicas meanwhile has another order
// (Placement::further_steps).
class OverReplicas {
 public:
  /// `axes`: at least one.
  OverReplicas(std::span<const std::shared_ptr<Communicator>> axes, at::Tensor rows, const Tag& tag)
      : replicas_(axes.front()), rows_(std::move(rows)), tag_(tag) {
    if (axes.size() > 1) next_ = std::make_shared<OverReplicas>(axes.subspan(1), rows_, tag);
  }

  /// With the votes of the step before.
  void begin(std::span<const uint8_t> votes) noexcept {
    try {
      tag_.votes.assign(votes.begin(), votes.end());
      work_ = replicas_->all_reduce(rows_, ReduceOp::kSum, tag_);
      if (next_) work_->then([next = next_](std::span<const uint8_t> summed) { next->begin(summed); });
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void wait() {
    if (error_) std::rethrow_exception(error_);
    work_->wait();
    if (next_) next_->wait();
  }
  std::span<const uint8_t> votes() const { return next_ ? next_->votes() : work_->votes(); }

 private:
  const std::shared_ptr<Communicator> replicas_;
  std::shared_ptr<OverReplicas> next_;
  const at::Tensor rows_;
  Tag tag_;
  std::shared_ptr<Work> work_;
  std::exception_ptr error_;
};

class OverAllAxes : public Reduction {
 public:
  explicit OverAllAxes(const Placement& placement) : placement_(placement), over_shard_axis_(placement) {}

  Started start(const at::Tensor& rows, std::vector<Piece> pieces, std::span<const int64_t> offsets, double scale,
                Tag tag, const ReduceScatter& with) const override {
    // A replica none of whose ranks has a gradient leaves them so. One rank alone fills them.
    if (placement_.shard().world_size() > 1) rows.zero_();
    auto second = std::make_shared<OverReplicas>(placement_.further_steps(), rows, tag);
    auto first = over_shard_axis_.start(rows, std::move(pieces), offsets, 1.0, std::move(tag), with).work;
    first->then([second](std::span<const uint8_t> votes) { second->begin(votes); });
    return {std::make_shared<Steps>(std::move(first), std::move(second)), scale};
  }

 private:
  class Steps : public Work {
   public:
    Steps(std::shared_ptr<Work> first, std::shared_ptr<OverReplicas> second)
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
  if (placement.replicas() > 1) return std::make_unique<OverAllAxes>(placement);
  return std::make_unique<OverShardAxis>(placement);
}

std::unique_ptr<const Reduction> reduction_within_replica(const Placement& placement) {
  return std::make_unique<OverShardAxis>(placement);
}

double factor_before_sum(c10::ScalarType dtype, const Placement& placement) {
  double factor = 1;
  if (dtype == c10::kHalf)
    while (1 / (factor * factor) < placement.divisor()) factor /= 2;
  return factor;
}

void ReductionInFlight::finish() {
  if (started.scale == 1.0) return;
  const auto rows = output.tensor();
  memory::note_use(rows);
  scale_in_place(rows, std::exchange(started.scale, 1.0));
}

ReductionInFlight reduce(const Reduction& reduction, const GroupIdentity& group, std::string subject,
                         const FlatParams& flat, memory::FlatPart output, Contribution contribution,
                         const ReductionPolicy& policy, uint32_t writes) {
  auto& [pieces, votes, charges, joined] = contribution;
  const bool is_within_replica = !policy.all_reduces && group.placement.replicas() > 1;
  // In the subject, or ranks could differ unseen.
  if (is_within_replica) subject += " within the replica";
  if (joined > 0) subject += str_cat(" with ", joined, " before");
  if (policy.divide_factor) subject += str_cat(" divided by ", *policy.divide_factor);
  Tag tag = group.tag(std::move(subject), std::move(votes), writes);
  const double divisor = policy.divide_factor.value_or(group.placement.divisor());
  const double scale =
      is_within_replica ? 1.0 : 1.0 / (divisor * factor_before_sum(output.form.dtype, group.placement));
  auto started =
      reduction.start(output.tensor(), std::move(pieces), flat.plane().boundaries(), scale, std::move(tag),
                      policy.custom_reduce_scatter);
  return {.charges = std::move(charges),
          .output = std::move(output),
          .started = std::move(started),
          .is_within_replica = is_within_replica,
          .joined = joined};
}

}  // namespace fsdp::runtime
