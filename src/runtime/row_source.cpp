#include "runtime/row_source.h"

#include <utility>

namespace fsdp::runtime {

RowSource rows_of_tensor(at::Tensor whole) {
  return [whole = std::move(whole)](const ParamRows& wanted) {
    const auto rows = wanted.sizes.empty() ? whole.reshape({1}) : whole;
    wanted.values.copy_(rows.narrow(0, wanted.range.first, wanted.range.count));
  };
}

}  // namespace fsdp::runtime
