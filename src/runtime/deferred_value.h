#pragma once
/// \file
/// Tensors that are made without memory, on the meta device, and the recorded operator calls that compute their values
/// later.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <vector>

#include "memory/flat_buffer.h"

namespace fsdp::runtime {

struct DeferredCall;

/// The contents of a storage at one moment: either the result of a recorded call, or memory that holds the values. A
/// value refers to the values from which it is computed, but not to those that are computed from it. It does not
/// change, except that an all-gather may fill `there` if `is_spread` is true.
struct DeferredValue {
  c10::Device device;
  size_t bytes = 0;
  /// The call that computes the value; null if nothing has been written yet or if `there` holds the value.
  std::shared_ptr<const DeferredCall> call = nullptr;
  /// Index of the storage among those that `call` writes and makes.
  size_t place = 0;
  /// The storage's bytes, if they are in memory; undefined otherwise.
  at::Tensor there = {};
  /// Length of the longest chain of calls that computes the value.
  int depth = 0;
  /// True for the value of a sharded parameter: each rank has its rows, and `there` holds the whole value only after an
  /// all-gather.
  bool is_spread = false;
};
using DeferredValuePtr = std::shared_ptr<const DeferredValue>;

/// How a tensor lies on its storage.
struct DeferredGeometry {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType dtype = at::kFloat;
};

/// An operator call that was recorded and is carried out later.
struct DeferredCall {
  struct Operand {
    size_t argument = 0, element = 0;  // the argument's index; the tensor's index if the argument is a list
    DeferredGeometry geometry;
    DeferredValuePtr value;  // the storage's contents before the call
  };

  c10::OperatorHandle op;
  /// The arguments of the call. Deferred tensors are undefined here and listed in `operands`.
  std::vector<c10::IValue> arguments;
  std::vector<Operand> operands;
  at::Generator generator = {};     ///< the generator of a random call; undefined for other calls
  at::Tensor generator_state = {};  ///< the generator's state before the call
};

/// Returns the deferred value of a meta tensor's storage; null if no deferred operator wrote to that storage.
DeferredValuePtr deferred_value_of(const at::Tensor& tensor);
/// Makes `value` the contents of the storage of `tensor`, which must be on the meta device.
void defer(const at::Tensor& tensor, DeferredValuePtr value);
/// Returns true if an operator wrote to the tensor after recording had ended, so that the write had no effect. Finds
/// such a write only if a deferred operator has written through this tensor itself, not only through a view.
bool was_written_since(const at::Tensor& tensor);
DeferredGeometry geometry_of(const at::Tensor& tensor);
/// Returns the tensor's whole storage as a tensor of bytes.
at::Tensor bytes_of_storage(const at::Tensor& tensor);

/// Advances the generator of a random call by carrying the call out on temporary memory. `call.generator` must be
/// undefined.
void draw(const DeferredCall& call);

/// Returns the dtype and the device that a tensor has, or, if its value is deferred, will have once it is computed.
memory::Form form_of_values(const at::Tensor& tensor);
/// Returns a new tensor that has the sizes and strides of `tensor` and its deferred value. Each call returns the same
/// bits. The function restores the states of the generators that it uses; meanwhile no other thread should draw from
/// them.
at::Tensor compute(const at::Tensor& tensor);
/// Computes a value and returns it as one that is in memory and needs no recorded calls.
DeferredValuePtr computed(const DeferredValuePtr& value);

/// While this guard lives, tensors that this thread makes are on the meta device. The guard records the operators that
/// write to them (kPutOff) or drops them (kForget). With kPutOff a random operator runs at once on temporary memory, so
/// that generators advance as they would without the guard.
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
