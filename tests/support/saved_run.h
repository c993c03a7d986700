#pragma once
/// \file
/// A small model with its optimizer, saved and loaded in trials.

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

/// How often a test of random trials tries: FSDP_TEST_TRIALS, or few times.
inline int trials(int few) {
  const char* number = std::getenv("FSDP_TEST_TRIALS");
  return number == nullptr ? few : std::atoi(number);
}

/// Sharded, or plain without options.
struct SavedRun {
  std::shared_ptr<SmallNetImpl> net = build_alike([] {
    auto built = std::make_shared<SmallNetImpl>();
    built->to(torch::kDouble);
    return built;
  });
  std::optional<Group> group;
  std::optional<optim::AdamW> optimizer;

  SavedRun() { optimizer.emplace(net->parameters(), torch::optim::AdamWOptions(1e-2)); }
  explicit SavedRun(const FullyShardOptions& options) : group(shard_blocks(*net, options)) {
    optimizer.emplace(net->parameters(), torch::optim::AdamWOptions(1e-2));
  }

  void train(int step) {
    optimizer->zero_grad();
    torch::Tensor loss;
    {
      ForwardScope scope(*group);
      loss = small_net_loss(*net, {step, rank() * 2, 2});
    }
    loss.backward();
    optimizer->step();
  }
  void save(const std::string& folder, int64_t step) const {
    save_checkpoint(folder, *group, &*optimizer, {.step = step});
  }
  /// This rank's rows of parameters, buffers and optimizer state.
  std::vector<StateEntry> rows() const {
    auto all = group ? state_dict(*group) : state_dict(*net);
    auto more = group ? state_dict(*optimizer, *group) : state_dict(*optimizer, *net);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

/// Whole tensors by name, put together from the rows of ranks that are threads.
class WholeState {
 public:
  void add(const std::vector<StateEntry>& rows) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, sizes, first, values] : rows) {
      auto& whole = tensors_.try_emplace(name, torch::full(sizes, NAN, values.scalar_type())).first->second;
      if (values.numel() > 0) whole.narrow(0, first, values.size(0)).copy_(values);
    }
  }
  /// Of what `rows` shows, the first that is not here or has other bits; empty if there is none.
  std::string difference(const std::vector<StateEntry>& rows) const {
    if (rows.size() != tensors_.size()) return c10::str(rows.size(), " tensors, not ", tensors_.size());
    for (const auto& [name, sizes, first, values] : rows) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end() || found->second.sizes() != sizes) return name;
      if (values.numel() > 0 && !torch::equal(found->second.narrow(0, first, values.size(0)), values.clone()))
        return name;
    }
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, torch::Tensor> tensors_;
};

/// Expects of every rank that `save` fails, says why, and leaves the training as it was.
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
