#pragma once
/// \file
/// Which gradients a backward has yet to give a group. Integers only.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fsdp::runtime {

/// Where the gradient of a slot comes from: nowhere, the outermost graph task, or a backward inside it, which follows a
/// forward that runs again.
enum class GradientSource : uint8_t { kNone, kTask, kInside };

/// Of the slots of one group, while a backward is open.
class Expectations {
 public:
  /// A backward begins, which expects nothing yet.
  void begin(size_t slots) {
    missing_from_.assign(slots, GradientSource::kNone);
    expected_ = missing_ = missing_inside_ = 0;
  }
  void expect(size_t slot, GradientSource source) {
    missing_from_[slot] = source;
    expected_ += source == GradientSource::kTask ? 1 : 0;
    missing_ += source == GradientSource::kTask ? 1 : 0;
    missing_inside_ += source == GradientSource::kInside ? 1 : 0;
  }
  void arrive(size_t slot, GradientSource source) {
    if (missing_from_[slot] != source) return;
    missing_from_[slot] = GradientSource::kNone;
    --(source == GradientSource::kInside ? missing_inside_ : missing_);
  }

  /// Whether the outermost graph task gives any.
  bool expects_any() const { return expected_ > 0; }
  bool is_complete() const { return missing_ == 0 && missing_inside_ == 0; }
  /// Whether nothing else is missing but gradients of what may be computed again.
  bool awaits_recomputation_only() const { return missing_ == 0 && missing_inside_ > 0; }

 private:
  std::vector<GradientSource> missing_from_;
  size_t expected_ = 0, missing_ = 0, missing_inside_ = 0;
};

}  // namespace fsdp::runtime
