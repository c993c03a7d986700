#include "state/format/dtype.h"

#include <array>

namespace fsdp::state {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  uint64_t bytes;
};

// The rows have the order of the enumerators, because row_of uses the enumerator as an index.
constexpr std::array kDtypes{
    Row{Dtype::kBool, "BOOL", 1},
    Row{Dtype::kUInt8, "U8", 1},
    Row{Dtype::kInt8, "I8", 1},
    Row{Dtype::kFloat8E5M2, "F8_E5M2", 1},
    Row{Dtype::kFloat8E4M3, "F8_E4M3", 1},
    Row{Dtype::kFloat8E5M2FNUZ, "F8_E5M2FNUZ", 1},
    Row{Dtype::kFloat8E4M3FNUZ, "F8_E4M3FNUZ", 1},
    Row{Dtype::kFloat8E8M0, "F8_E8M0", 1},
    Row{Dtype::kInt16, "I16", 2},
    Row{Dtype::kUInt16, "U16", 2},
    Row{Dtype::kFloat16, "F16", 2},
    Row{Dtype::kBFloat16, "BF16", 2},
    Row{Dtype::kInt32, "I32", 4},
    Row{Dtype::kUInt32, "U32", 4},
    Row{Dtype::kFloat32, "F32", 4},
    Row{Dtype::kFloat64, "F64", 8},
    Row{Dtype::kInt64, "I64", 8},
    Row{Dtype::kUInt64, "U64", 8},
    Row{Dtype::kComplex32, "C32", 4},
    Row{Dtype::kComplex64, "C64", 8},
    Row{Dtype::kComplex128, "C128", 16},
};

const Row& row_of(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view name_of(Dtype dtype) { return row_of(dtype).name; }
uint64_t bytes_of(Dtype dtype) { return row_of(dtype).bytes; }

std::optional<Dtype> stored_as_pairs_of(Dtype dtype) {
  if (dtype == Dtype::kComplex32) return Dtype::kFloat16;
  if (dtype == Dtype::kComplex128) return Dtype::kFloat64;
  return std::nullopt;
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const auto& row : kDtypes)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::string dtype_names() {
  std::string names;
  for (const auto& row : kDtypes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

}  // namespace fsdp::state
