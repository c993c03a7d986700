#pragma once
/// \file
/// The message of an exception.

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace fsdp {

/// Without the backtrace that exceptions of LibTorch have.
inline std::string what_without_backtrace(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

}  // namespace fsdp
