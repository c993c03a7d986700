#pragma once
/// \file
/// Memory that is taken and given back step after step.

#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

namespace fsdp::memory {

/// Hands out one block again and again, e.g. for a group's gradients, which come with each backward and go with
/// zero_grad().
///
/// From the general allocator such a block would go back to the system and come again page by page, or leave holes that
/// nothing else fits into. A large one on the CPU stays mapped here; while nobody has it the system may take its pages
/// (MADV_FREE), so it counts as free. Thread safety: `take` from one thread at a time, giving back from any.
class ReusedBlock {
 public:
  explicit ReusedBlock(c10::Device device) : device_(device) {}
  /// A block of any content; it goes back when the pointer goes, also after this object. Several may be out at a time.
  c10::DataPtr take(size_t bytes);

 private:
  struct Spare;
  c10::Device device_;
  std::shared_ptr<Spare> spare_;
};

}  // namespace fsdp::memory
