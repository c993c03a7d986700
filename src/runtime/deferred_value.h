#pragma once
/// \file
/// Tensors that are made without memory, and values that are computed later: what operators would have written, had
/// they been carried out.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <vector>

#include "memory/flat_buffer.h"

namespace fsdp::runtime {

struct DeferredCall;

/// What a storage holds at one moment: what a call left in it, or memory that is there. Values refer to those that they
/// were made of, never the other way. Does not change, but for a long chain of calls, which is computed and forgotten.
struct DeferredValue {
  c10::Device device;
  size_t bytes = 0;
  /// Null where nothing was written as yet, or `there` has it.
  std::shared_ptr<const DeferredCall> call = nullptr;
  size_t place = 0;
  at::Tensor there = {};
  /// Calls one after the other that lead here, at most.
  int depth = 0;
  /// Other ranks have parts of it, until `there` has it.
  bool is_spread = false;
};
using DeferredValuePtr = std::shared_ptr<const DeferredValue>;

struct DeferredGeometry {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType dtype = at::kFloat;
};

struct DeferredCall {
  struct Operand {
    size_t argument = 0, element = 0;  // of a list
    DeferredGeometry geometry;
    DeferredValuePtr value;  // before the call
  };
  struct Random {
    at::Generator generator;
    at::Tensor state;
  };

  c10::OperatorHandle op;
  /// Without the deferred tensors, which `operands` has.
  std::vector<c10::IValue> arguments;
  std::vector<Operand> operands;
  std::optional<Random> random;
};

/// The deferred value of the storage of a meta tensor; null if no deferred operator wrote to that storage.
DeferredValuePtr deferred_value_of(const at::Tensor& tensor);
/// The storage of `tensor`, on the meta device, holds `value` from now on.
void defer(const at::Tensor& tensor, DeferredValuePtr value);
/// Whether an operator wrote to the tensor when nothing was put off any more: that had no effect. Of tensors that have
/// been written through themselves before.
bool was_written_since(const at::Tensor& tensor);
DeferredGeometry geometry_of(const at::Tensor& tensor);
at::Tensor bytes_of_storage(const at::Tensor& tensor);

/// Draws the random numbers of a call, which has no `random` yet, by carrying it out on memory that is given back.
void draw(const DeferredCall& call);

/// The dtype and device that a tensor has, or will have when what was put off has been carried out.
memory::Form form_of_values(const at::Tensor& tensor);
/// A tensor of the sizes and strides of `tensor`, which has a deferred value, with that value: the same bits each time.
/// Generators are left as they were; meanwhile no other thread should draw from them.
at::Tensor compute(const at::Tensor& tensor);
DeferredValuePtr computed(const DeferredValuePtr& value);

/// While it lives, tensors that this thread makes are on the meta device, and what operators would have written to them
/// is put off or forgotten. Random numbers are drawn when they would have been, on memory that is given back at once.
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
