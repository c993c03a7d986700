#pragma once
/// \file
/// Stretches of a program in which tensors are made without memory.

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "runtime/compat.h"

namespace fsdp::runtime {

/// While it lives, tensors that this thread makes are on the meta device. What operators would have written to them is
/// put off (see DeferredValue), or forgotten. Random numbers are drawn when they would have been, on memory that is
/// given back at once, so that generators go on as if nothing had been put off.
class DeferredRecording {
 public:
  enum class Kind : uint8_t { kPutOff, kForget };
  explicit DeferredRecording(Kind kind);
  ~DeferredRecording();
  DeferredRecording(const DeferredRecording&) = delete;
  DeferredRecording& operator=(const DeferredRecording&) = delete;

 private:
  const Kind former_;
  c10::impl::IncludeDispatchKeyGuard guard_;
};

}  // namespace fsdp::runtime
