// New tensors computed from tensors and numbers, and the same in place.
#include "runtime/typed_kernel.h"
#include "runtime/typed_kernels.h"

namespace fsdp::runtime::signatures {

bool register_arithmetic(torch::Library& library, const c10::OperatorHandle& op) {
  return register_one_of<
      // Element by element, products, masks, copies and tensors of the same sizes.
      Tensor(T), Tensor(T, T), Tensor(T, T, T), Tensor(T, S), Tensor(S, T), Tensor(T, S, S), Tensor(T, T, S),
      Tensor(T, S, T), Tensor(T, T, T, S), Tensor(T, T, T, S, S), Tensor(T, T, OptString), Tensor(T, String),
      Tensor(T, double, bool), Tensor(T, Sym), Tensor(T, OptS, OptS), Tensor(T, OptT, OptT), Tensor(T, OptMemory),
      Tensor(T, Type, bool, bool, OptMemory), Tensor(T, OptType, OptLayout, OptDevice, OptBool, bool, bool, OptMemory),
      Tensor(T, OptType, OptLayout, OptDevice, OptBool, OptMemory), Tensor(T, S, int64_t, S),
      // Reductions and losses.
      Tensor(T, bool), Tensor(T, T, bool), Tensor(T, T, int64_t), Tensor(T, T, int64_t, double),
      Tensor(T, T, int64_t, bool), Tensor(T, T, double, OptInt), Tensor(T, OptType), Tensor(T, Dims, bool),
      Tensor(T, OptDims, bool, OptType), Tensor(T, int64_t, bool), Tensor(T, int64_t, bool, OptType),
      Tensor(T, int64_t, OptType), Tensor(T, OptInt, bool), Tensor(T, S, OptDims, bool, OptType),
      Tensor(T, OptS, Dims, bool), Tensor(T, OptDims, OptS, bool), Tensor(T, OptDims, bool, bool),
      Two(T, OptDims, OptS, bool), Two(T, OptDims, bool, bool), Two(T, bool), Two(T, int64_t, bool),
      Two(T, Sym, int64_t, bool, bool)>(library, op);
}

bool register_in_place(torch::Library& library, const c10::OperatorHandle& op) {
  return register_one_of<Written(Written), Written(Written, T), Written(Written, T, T), Written(Written, S),
                         Written(Written, S, S), Written(Written, T, S), Written(Written, T, T, S),
                         Written(Written, T, T, S, S), Written(Written, T, bool), Written(Written, OptS, OptS)>(library,
                                                                                                                op);
}

}  // namespace fsdp::runtime::signatures
