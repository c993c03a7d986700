#pragma once
/// \file
/// A small model with its optimizer, for tests that save and load checkpoints.

#include <ATen/Context.h>
#include <fsdp/checkpoint.h>
#include <fsdp/optim.h>
#include <fsdp/state_dict.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "state/files.h"
#include "support/small_net.h"

namespace fsdp::test {

/// Returns the number of random trials that a test makes: FSDP_TEST_TRIALS if it is set, otherwise `few`.
inline int trials(int few) {
  const char* number = std::getenv("FSDP_TEST_TRIALS");
  return number == nullptr ? few : std::atoi(number);
}

/// Returns the whole parameters of a sharded or unsharded module, followed by its buffers. Collective if it is sharded.
inline std::vector<torch::Tensor> whole_values(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values;
  for (const auto& parameter : module.parameters()) values.push_back(full_tensor(parameter));
  for (const auto& buffer : module.buffers()) values.push_back(buffer.clone());
  return values;
}

/// Returns a SmallNet with a buffer.
inline std::shared_ptr<SmallNetImpl> net_with_seen() {
  auto net = std::make_shared<SmallNetImpl>();
  net->register_buffer("seen", torch::ones({4}));
  return net;
}

using MakeOptimizer = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<torch::Tensor>);

template <class Optimizer>
std::unique_ptr<torch::optim::Optimizer> made(const std::vector<torch::Tensor>& parameters, const auto&... options) {
  return std::make_unique<Optimizer>(parameters, options...);
}

inline std::unique_ptr<torch::optim::Optimizer> amsgrad(std::vector<torch::Tensor> parameters) {
  return made<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2).amsgrad(true));
}

/// A net and its optimizer. Made with options, the net is sharded, and the run is one rank's; without, it is unsharded.
struct SavedRun {
  std::shared_ptr<SmallNetImpl> net = build_alike(net_with_seen);
  std::optional<Group> group;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  explicit SavedRun(MakeOptimizer make = amsgrad) {
    net->to(torch::kDouble);
    optimizer = make(net->parameters());
  }
  explicit SavedRun(const FullyShardOptions& options, MakeOptimizer make = amsgrad,
                    c10::ScalarType dtype = torch::kDouble) {
    net->to(dtype);
    group = shard_blocks(*net, options);
    optimizer = make(net->parameters());
  }

  /// Trains one step. An unsharded run trains on the batches of `ranks` ranks.
  void train(int step, int ranks = 1) {
    const auto loss_of = [&](const Batch& batch) { return small_net_loss(*net, batch); };
    optimizer->zero_grad();
    const auto loss =
        group ? in_scope(*group, [&] { return loss_of({step, rank() * 2, 2}); }) : loss_of({step, 0, 2 * ranks});
    loss.backward();
    optimizer->step();
    net->named_buffers()["seen"].add_(1);
  }
  void save(const std::string& folder, const SaveOptions& options = {}) const {
    save_checkpoint(folder, *group, optimizer.get(), options);
  }
  void save(const std::string& folder, int64_t step) const { save(folder, {.step = step}); }
  LoadedCheckpoint load(const std::string& folder, const LoadOptions& options = {}) {
    return group ? load_checkpoint(folder, *group, optimizer.get(), options)
                 : load_checkpoint(folder, *net, optimizer.get(), options);
  }
  std::vector<torch::Tensor> values() const { return whole_values(*net); }
  /// Returns this rank's rows of the parameters, buffers and optimizer state.
  std::vector<StateEntry> rows() const {
    auto all = group ? state_dict(*group) : state_dict(*net);
    auto more = group ? state_dict(*optimizer, *group) : state_dict(*optimizer, *net);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// Returns the part of `whole` that `rows` covers. These rows may be shorter than the rows of dim 0.
inline torch::Tensor rows_of_whole(const torch::Tensor& whole, int64_t first_row, const torch::Tensor& rows) {
  const auto row_numel = c10::multiply_integers(rows.sizes().slice(std::min<size_t>(1, rows.sizes().size())));
  return whole.view({-1}).narrow(0, first_row * row_numel, rows.numel()).view(rows.sizes());
}

/// Whole tensors by name, which thread ranks put together from their rows.
class WholeState {
 public:
  void add(const std::vector<StateEntry>& rows) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, sizes, first, values] : rows) {
      auto& whole = tensors_.try_emplace(name, torch::full(sizes, NAN, values.scalar_type())).first->second;
      if (values.numel() > 0) rows_of_whole(whole, first, values).copy_(values);
    }
  }
  /// Returns the first difference between `rows` and the stored tensors: the numbers of tensors, or the name of a
  /// tensor that is missing here or has other bits. Returns an empty string if there is none.
  std::string difference(const std::vector<StateEntry>& rows) const {
    if (rows.size() != tensors_.size()) return c10::str(rows.size(), " tensors, not ", tensors_.size());
    for (const auto& [name, sizes, first, values] : rows) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || found->second.sizes() != sizes) return name;
      if (values.numel() > 0 && !torch::equal(rows_of_whole(found->second, first, values), plain_copy(values)))
        return name;
    }
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, torch::Tensor> tensors_;
};

/// Expects on every rank that `save` throws an error with a message that matches `says`, and that the training state
/// stays as it was.
inline void expect_intact(const SavedRun& run, const std::function<void()>& save,
                          const ::testing::Matcher<std::string>& says) {
  const auto random_state = [] { return at::globalContext().defaultGenerator(at::kCPU).get_state().clone(); };
  WholeState before;
  before.add(run.rows());
  const auto random = random_state();
  try {
    save();
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()), says);
  }
  EXPECT_EQ(before.difference(run.rows()), "");
  EXPECT_TRUE(torch::equal(random, random_state()));
}

}  // namespace fsdp::test
