#pragma once
/// \file
/// Element types of tensors in files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::state {

enum class Dtype : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kFloat8E5M2,
  kFloat8E4M3,
  kFloat8E5M2FNUZ,
  kFloat8E4M3FNUZ,
  kFloat8E8M0,
  kInt16,
  kUInt16,
  kFloat16,
  kBFloat16,
  kInt32,
  kUInt32,
  kFloat32,
  kFloat64,
  kInt64,
  kUInt64,
  kComplex32,
  kComplex64,
  kComplex128,
};

/// Returns the dtype's name in manifests, e.g. "F32". Safetensors files use the same name, unless the dtype is stored
/// as pairs.
std::string_view name_of(Dtype dtype);
std::optional<Dtype> dtype_named(std::string_view name);
/// Returns a list of all names for error messages.
std::string dtype_names();
uint64_t bytes_of(Dtype dtype);
/// Returns the dtype of the real and imaginary parts if `dtype` is a complex dtype that safetensors does not have. A
/// tensor of such a dtype is stored as pairs of these parts. Returns nullopt for other dtypes.
std::optional<Dtype> stored_as_pairs_of(Dtype dtype);

}  // namespace fsdp::state
