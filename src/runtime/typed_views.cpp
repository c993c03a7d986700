// Views, elements by their numbers, lists of tensors.
#include "runtime/typed_kernel.h"
#include "runtime/typed_kernels.h"

namespace fsdp::runtime::signatures {

bool register_view(torch::Library& library, const c10::OperatorHandle& op) {
  return register_one_of<
      // Views of the whole, permuted, padded.
      Tensor(T, int64_t), Tensor(T, int64_t, int64_t), Tensor(T, int64_t, int64_t, int64_t), Tensor(T, int64_t, Sizes),
      Tensor(T, Sizes), Tensor(T, Sizes, bool), Tensor(T, Sizes, Dims), Tensor(T, Sizes, S),
      Tensor(T, Sizes, String, OptDouble), Tensor(T, Sizes, Sizes, OptSym), Tensor(T, Dims), Tensor(T, Dims, Dims),
      // Some elements.
      Tensor(T, int64_t, Sym), Tensor(T, int64_t, OptSym, OptSym, Sym), Tensor(T, int64_t, Sym, Sym),
      Tensor(T, int64_t, T), Tensor(T, int64_t, T, bool), Tensor(T, OptList), Tensor(T, OptList, T, bool),
      Tensor(T, int64_t, T, T), Tensor(T, int64_t, T, T, S),
      // From and to lists.
      Tensors(T, int64_t), Tensors(T, int64_t, int64_t), Tensors(T, Sym, int64_t), Tensors(T, Sizes, int64_t),
      Tensor(List), Tensor(List, int64_t), Tensor(IList, int64_t), Tensor(String, List, OptDims)>(library, op);
}

}  // namespace fsdp::runtime::signatures
