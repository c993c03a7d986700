// What layers call with their weights.
#include "runtime/typed_kernel.h"
#include "runtime/typed_kernels.h"

namespace fsdp::runtime::signatures {

bool register_layer(torch::Library& library, const c10::OperatorHandle& op) {
  return register_one_of<Tensor(T, T, OptT),                                             // linear
                         Tensor(T, T, T, OptT),                                          // bilinear
                         Tensor(T, T, OptT, Sizes, Sizes, Sizes, Sym),                   // convolutions
                         Tensor(T, T, OptT, Sizes, String, Sizes, Sym),                  // with padding by name
                         Tensor(T, T, OptT, Sizes, Sizes, Sizes, Sym, Sizes),            // transposed
                         Tensor(T, T, OptT, Sizes, Sizes, Sizes, bool, Sizes, Sym),      // either
                         Tensor(T, T, T, OptT, double, bool, OptDouble, bool),           // scaled dot products
                         Tensor(T, T, Sym, bool, bool),                                  // embedding
                         Four(T, T, T, bool, int64_t, bool, OptT, bool),                 // embedding_bag
                         Four(T, T, T, bool, int64_t, bool, OptT, bool, OptInt),         // with padding
                         Tensor(T, T, T, T, OptT, OptT),                                 // recurrent cells
                         Two(T, List, T, T, OptT, OptT),                                 // lstm_cell
                         Three(T, List, List, bool, int64_t, double, bool, bool, bool),  // lstm
                         Three(T, T, List, List, bool, int64_t, double, bool, bool),     // on packed sequences
                         Two(T, T, List, bool, int64_t, double, bool, bool, bool),       // gru
                         Two(T, T, T, List, bool, int64_t, double, bool, bool),          // on packed sequences
                         Tensor(T, OptT, OptT, OptT, OptT, bool, double, double, bool),  // batch_norm
                         Tensor(T, int64_t, OptT, OptT, double, bool),                   // group_norm
                         Tensor(T, Sizes, OptT, OptT, double, bool),                     // layer_norm
                         Tensor(T, Sizes, OptT, OptDouble)                               // rms_norm
                         >(library, op);
}

}  // namespace fsdp::runtime::signatures
