#include "runtime/reduction.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/core/pieces.h"
#include "comm/core/text.h"

namespace fsdp::runtime {
namespace {

// The second step of a reduction: it sums this rank's rows over the replicas, over one axis after the other.
//
// Note [When the second step begins]. The communicator of the first step begins the second one as soon as the first is
// done, on the thread that notices it and without waiting; the same holds for a third step. So on every rank the second
// steps begin in the order of the first steps, which is the same for all replicas. No thread of the program has to
// start them, and a rank that waits for something else does not delay its replicas. Other collectives over the replicas
// use other communicators, so their order does not matter here (Placement::further_steps).
class OverReplicas : public Work {
 public:
  /// `axes` has at least one axis.
  OverReplicas(std::span<const std::shared_ptr<Communicator>> axes, std::vector<at::Tensor> sums, const Tag& tag)
      : replicas_(axes.front()), sums_(std::move(sums)), tag_(tag) {
    if (axes.size() > 1) next_ = std::make_shared<OverReplicas>(axes.subspan(1), sums_, tag);
  }

  void begin() noexcept {
    try {
      work_ = replicas_->all_reduce(sums_, ReduceOp::kSum, tag_);
      if (next_) work_->then([next = next_] { next->begin(); });
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void wait() override {
    if (error_) std::rethrow_exception(error_);
    work_->wait();
    if (next_) next_->wait();
  }
  bool lets_others_go_on() const override { return true; }

 private:
  const std::shared_ptr<Communicator> replicas_;
  std::shared_ptr<OverReplicas> next_;
  const std::vector<at::Tensor> sums_;
  const Tag tag_;
  std::shared_ptr<Work> work_;
  std::exception_ptr error_;
};

// Sums rows and counts in one collective. If the user's reduce_scatter sums the rows, the counts are summed first, in a
// collective of their own.
std::vector<std::shared_ptr<Work>> start_over_shard_axis(const Placement& placement, std::vector<ReducePlane> rows,
                                                         ReducePlane counts, double scale, Tag tag,
                                                         const ReduceScatter& with) {
  auto& ranks = placement.shard().reductions();
  const bool counts_votes = counts.output.defined();
  if (!with) {
    if (counts_votes) rows.push_back(std::move(counts));
    return {ranks.reduce_scatter(std::move(rows), scale, std::move(tag))};
  }
  if (!counts_votes) return {with(ranks, std::move(rows), scale, std::move(tag))};
  auto of_counts = tag;
  of_counts.subject += ", which have gradients";
  auto first = ranks.reduce_scatter({std::move(counts)}, scale, std::move(of_counts));
  return {std::move(first), with(ranks, std::move(rows), scale, std::move(tag))};
}

// Returns what this rank adds to the counts of all ranks' slices: for each slice the same numbers, 1 for each parameter
// that has a gradient on this rank and 0 for the others. Fills the result on the device, without a copy from the host.
at::Tensor counts_of(const std::vector<uint8_t>& votes, int ranks, c10::Device device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  if (std::ranges::count(votes, 0) == 0) return at::ones({ranks * std::ssize(votes)}, options);
  const auto counts = at::zeros({ranks, std::ssize(votes)}, options);
  for (size_t begin = 0, end = 0; begin < votes.size(); begin = end + 1) {
    end = begin;
    while (end < votes.size() && votes[end] != 0) ++end;
    if (end > begin) counts.narrow(1, static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)).fill_(1);
  }
  return counts.view(-1);
}

}  // namespace

std::vector<std::shared_ptr<Work>> start_sum(const Placement& placement, bool over_replicas,
                                             std::vector<ReducePlane> rows, ReducePlane counts, double scale, Tag tag,
                                             const ReduceScatter& with) {
  if (!over_replicas)
    return start_over_shard_axis(placement, std::move(rows), std::move(counts), scale, std::move(tag), with);
  std::vector<at::Tensor> sums{counts.output};
  for (const auto& plane : rows) sums.push_back(plane.output);
  auto second = std::make_shared<OverReplicas>(placement.further_steps(), std::move(sums), tag);
  auto works = start_over_shard_axis(placement, std::move(rows), std::move(counts), 1.0, std::move(tag), with);
  works.back()->then([second, counted = works.size() > 1 ? works.front() : nullptr] {
    try {
      if (counted) counted->wait();  // does not block: this collective began before the other one, so it is done
    } catch (const std::exception&) {
      return;  // the thread that waits for `counted` gets the error
    }
    second->begin();
  });
  works.push_back(std::move(second));
  return works;
}

double factor_before_sum(c10::ScalarType dtype, const Placement& placement) {
  double factor = 1;
  if (dtype == c10::kHalf)
    while (1 / (factor * factor) < placement.divisor()) factor /= 2;
  return factor;
}

void Reduction::start(const Placement& placement, const ReductionPolicy& policy, double share_with_data,
                      std::vector<std::vector<Piece>> gradients, Tag tag) {
  const bool has_replicas = placement.replicas() > 1;
  is_within_replica = !policy.all_reduces && has_replicas;
  // These settings go into the subject, which the ranks compare.
  if (is_within_replica) tag.subject += " within the replica";
  if (joined > 0) tag.subject += str_cat(" with ", joined, " before");
  if (policy.divide_factor) tag.subject += str_cat(" divided by ", *policy.divide_factor);
  const double divisor = policy.divide_factor.value_or(placement.divisor()) * share_with_data;
  const bool over_replicas = has_replicas && !is_within_replica;
  const double whole_scale = is_within_replica ? 1.0 : 1.0 / (divisor * factor);
  ReducePlane counting;
  if (placement.process_group().world_size() > 1) {
    const auto given = counts_of(votes, placement.shard().world_size(), planes.front().rows.form.device);
    counting = {counts = at::empty({std::ssize(votes)}, given.options()), {{0, given}}};
  }
  std::vector<ReducePlane> rows;
  for (size_t i = 0; i < planes.size(); ++i) rows.push_back({planes[i].rows.tensor(), std::move(gradients[i])});
  if (over_replicas) scale = whole_scale;
  works = start_sum(placement, over_replicas, std::move(rows), std::move(counting), whole_scale, std::move(tag),
                    policy.custom_reduce_scatter);
}

std::vector<uint8_t> Reduction::votes_of_all() const {
  if (!lacks_gradients || !counts.defined()) return votes;
  const at::Tensor on_host = counts.cpu();
  std::vector<uint8_t> of_all;
  for (const float count : std::span(on_host.const_data_ptr<float>(), votes.size())) of_all.push_back(count != 0);
  return of_all;
}

void Reduction::finish() {
  if (scale == 1.0) return;
  for (const auto& plane : planes) {
    const auto rows = plane.rows.tensor();
    memory::note_use(rows);
    scale_in_place(rows, scale);
  }
}

}  // namespace fsdp::runtime
