#pragma once
/// \file
/// What a rank keeps of a flat buffer's whole values from forward to backward.

#include <fsdp/communicator.h>

#include "memory/flat_part.h"

namespace fsdp::runtime {

/// Neighbours keep a slice each, of equal lengths, so together they have all values (hpZ of ZeRO++, arXiv:2306.10209).
/// It has the form of whole values, and memory only while there is something in it. Thread safety: under the rank's
/// lock.
class SecondShard {
 public:
  bool is_there() const { return slice_.buffer != nullptr; }
  /// This rank's part, its number among `ranks`, of `whole`, which the current stream may read.
  void take(const memory::FlatPart& whole, const Communicator& ranks,
            const std::shared_ptr<memory::ByteAccount>& account);
  at::Tensor slice() const { return slice_.tensor(); }
  void drop() { slice_.buffer.reset(); }

 private:
  memory::FlatPart slice_{{c10::kFloat, c10::kCPU}};
};

}  // namespace fsdp::runtime
