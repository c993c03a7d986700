#include "state/torch_dtype.h"

#include <array>
#include <utility>

#include "comm/core/check.h"

namespace fsdp::state {
namespace {

constexpr std::array kTypes{
    std::pair{Dtype::kBool, at::kBool},
    std::pair{Dtype::kUInt8, at::kByte},
    std::pair{Dtype::kInt8, at::kChar},
    std::pair{Dtype::kFloat8E5M2, at::kFloat8_e5m2},
    std::pair{Dtype::kFloat8E4M3, at::kFloat8_e4m3fn},
    std::pair{Dtype::kFloat8E5M2FNUZ, at::kFloat8_e5m2fnuz},
    std::pair{Dtype::kFloat8E4M3FNUZ, at::kFloat8_e4m3fnuz},
    std::pair{Dtype::kFloat8E8M0, at::kFloat8_e8m0fnu},
    std::pair{Dtype::kInt16, at::kShort},
    std::pair{Dtype::kUInt16, at::kUInt16},
    std::pair{Dtype::kFloat16, at::kHalf},
    std::pair{Dtype::kBFloat16, at::kBFloat16},
    std::pair{Dtype::kInt32, at::kInt},
    std::pair{Dtype::kUInt32, at::kUInt32},
    std::pair{Dtype::kFloat32, at::kFloat},
    std::pair{Dtype::kFloat64, at::kDouble},
    std::pair{Dtype::kInt64, at::kLong},
    std::pair{Dtype::kUInt64, at::kUInt64},
    std::pair{Dtype::kComplex32, at::kComplexHalf},
    std::pair{Dtype::kComplex64, at::kComplexFloat},
    std::pair{Dtype::kComplex128, at::kComplexDouble},
};

}  // namespace

Dtype dtype_of(at::ScalarType type, const std::string& name) {
  for (const auto& [dtype, scalar_type] : kTypes)
    if (scalar_type == type) return dtype;
  throw UsageError(str_cat("tensor '", name, "' has the dtype ", type,
                           ", which the file format does not support; expected one of ", dtype_names(),
                           ". Convert the tensor before saving"));
}

at::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [known, scalar_type] : kTypes)
    if (known == dtype) return scalar_type;
  return at::kByte;  // not reached: kTypes has every enumerator
}

}  // namespace fsdp::state
