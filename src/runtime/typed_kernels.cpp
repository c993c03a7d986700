#include "runtime/typed_kernels.h"

#include <torch/library.h>

namespace fsdp::runtime {

void register_typed_kernels(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    // Of lists taken element by element the interceptor compares the sizes, as it finds them on the stack.
    if (!name.name.starts_with("aten::") || name.name.starts_with("aten::_foreach_")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;  // kernels came before the operator was defined
    static_cast<void>(signatures::register_arithmetic(library, *op) || signatures::register_in_place(library, *op) ||
                      signatures::register_layer(library, *op) || signatures::register_view(library, *op));
  }
}

}  // namespace fsdp::runtime
