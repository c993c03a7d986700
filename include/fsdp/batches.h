#pragma once
/// \file
/// The interface through which Trainer sees a user's data: the batches of an epoch, one after another.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp::detail {

template <class Data>
decltype(auto) range_of_epoch(Data& data, int64_t epoch) {
  if constexpr (std::is_invocable_v<Data&, int64_t>)
    return data(epoch);
  else
    return (data);
}

template <class Range>
auto& behind_pointer(Range& range) {
  if constexpr (requires { range.begin(); })
    return range;
  else
    return *range;
}

/// One pass over the batches of an epoch. `Data` is a range of batches, a pointer to a range, such as a data loader, or
/// a function that takes the number of the epoch, from 0, and returns a range or a pointer. `next` takes one batch from
/// the range, and nothing takes a batch earlier.
template <class Data>
class EpochOfBatches {
  using Range = decltype(range_of_epoch(std::declval<Data&>(), int64_t{}));  // a value or a reference
  using Iterator = decltype(behind_pointer(std::declval<std::remove_reference_t<Range>&>()).begin());

 public:
  using Batch = std::remove_reference_t<decltype(*std::declval<Iterator&>())>;

  EpochOfBatches(Data& data, int64_t epoch) : range_(range_of_epoch(data, epoch)) {}
  EpochOfBatches(const EpochOfBatches&) = delete;
  EpochOfBatches& operator=(const EpochOfBatches&) = delete;

  /// Goes to the next batch. Returns false if there is none.
  bool next() {
    if (is_over_) return false;
    if (at_)
      ++*at_;
    else
      at_ = std::make_unique<Iterator>(behind_pointer(range_).begin());
    is_over_ = !(*at_ != behind_pointer(range_).end());  // some iterators have only operator!=
    return !is_over_;
  }
  decltype(auto) batch() { return **at_; }

 private:
  Range range_;
  std::unique_ptr<Iterator> at_;  // GCC 12 would warn that an optional may be uninitialised
  bool is_over_ = false;
};

/// Batches and their losses, without the user's types. The loop of Trainer::fit uses only this interface.
class MicroBatches {
 public:
  virtual ~MicroBatches() = default;
  /// Starts the pass of `epoch`.
  virtual void begin(int64_t epoch) = 0;
  /// Skips the next `count` batches, or fewer if the epoch ends. Returns the number of skipped batches.
  virtual int64_t skip(int64_t count) = 0;
  /// Takes the next `count` batches, or fewer if the epoch ends, and drops the batches that it took before. Returns the
  /// number of taken batches.
  virtual int64_t take(int64_t count) = 0;
  /// Returns the loss of the taken batch `number`, counted from 0. If `goes_backward()`, the call also runs backward
  /// from `weight` times the loss.
  virtual at::Tensor loss(int64_t number, double weight) = 0;
  virtual bool goes_backward() const = 0;
};

template <class Model, class Data, class Loss>
class MicroBatchesOf final : public MicroBatches {
 public:
  MicroBatchesOf(Model& model, Data& data, Loss& loss) : model_(model), data_(data), loss_(loss) {}

  void begin(int64_t epoch) override {
    taken_.clear();
    epoch_.emplace(data_, epoch);
  }
  int64_t skip(int64_t count) override {
    int64_t skipped = 0;
    while (skipped < count && epoch_->next()) ++skipped;
    return skipped;
  }
  int64_t take(int64_t count) override {
    taken_.clear();
    while (static_cast<int64_t>(taken_.size()) < count && epoch_->next()) taken_.push_back(epoch_->batch());
    return static_cast<int64_t>(taken_.size());
  }
  at::Tensor loss(int64_t number, double weight) override {
    auto& batch = taken_[static_cast<size_t>(number)];
    if constexpr (kGoesBackward)
      return loss_(model_, batch, weight);
    else
      return loss_(model_, batch);
  }
  bool goes_backward() const override { return kGoesBackward; }

 private:
  using Taken = std::remove_const_t<typename EpochOfBatches<Data>::Batch>;
  static constexpr bool kGoesBackward = std::is_invocable_v<Loss&, Model&, Taken&, double>;

  Model& model_;
  Data& data_;
  Loss& loss_;
  std::optional<EpochOfBatches<Data>> epoch_;
  std::vector<Taken> taken_;
};

}  // namespace fsdp::detail
#pragma GCC visibility pop
