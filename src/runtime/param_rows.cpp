#include "runtime/param_rows.h"

#include <utility>

#include "memory/block.h"
#include "runtime/deferred_value.h"

namespace fsdp::runtime {
namespace {

void copy_rows(const at::Tensor& whole, const ParamRows& wanted) {
  wanted.values.copy_(whole.reshape(wanted.row_sizes).narrow(0, wanted.range.first, wanted.range.count));
}

}  // namespace

RowSource rows_of_tensor(at::Tensor whole) {
  return [whole = std::move(whole)](const ParamRows& wanted) {
    if (!deferred_value_of(whole)) return copy_rows(whole, wanted);
    copy_rows(compute(whole), wanted);
    // Of several large ones the general allocator would keep the memory.
    constexpr size_t kLarge = size_t{1} << 20;
    if (whole.nbytes() >= kLarge) memory::return_free_pages();
  };
}

}  // namespace fsdp::runtime
