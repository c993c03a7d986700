#include "runtime/partial_sum.h"

namespace fsdp::runtime {

void add_pieces(std::vector<Piece>& pieces, int64_t first, const at::Tensor& gradient, int64_t first_of_rows,
                const at::Tensor& rows) {
  const auto add = [&](int64_t begin, at::Tensor values) {
    if (values.numel() > 0) pieces.push_back({begin, std::move(values)});
  };
  if (!rows.defined()) return add(first, gradient);
  if (!gradient.defined()) return add(first_of_rows, rows);
  const int64_t before = first_of_rows - first, end = before + rows.numel();
  add(first, gradient.narrow(0, 0, before));
  add(first_of_rows, rows.add_(gradient.narrow(0, before, rows.numel())));
  add(first + end, gradient.narrow(0, end, gradient.numel() - end));
}

}  // namespace fsdp::runtime
