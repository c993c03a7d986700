#pragma once
/// \file
/// What errors of the library are made with, and what becomes of those that it catches.

#include <fsdp/error.h>

#include <exception>
#include <string>

#include "comm/core/text.h"

namespace fsdp {

/// The words of a transport's error without the backtrace that may follow them.
inline std::string first_line(const std::string& what) { return what.substr(0, what.find('\n')); }

/// The message of an exception, without the backtrace that exceptions of LibTorch have.
inline std::string what_without_backtrace(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

/// Throws UsageError made of `message` unless `ok`; the message is put together only then.
template <class... Message>
void require(bool ok, const Message&... message) {
  if (!ok) throw UsageError(str_cat(message...));
}

/// Runs `act`, whose failure is no news here. Returns whether it ended without an exception.
bool try_to(const auto& act) {
  try {
    act();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Keeps the first exception of several actions on a rank that goes on, because others wait for it. One thread.
class FirstError {
 public:
  /// Runs `act`, unless an earlier one threw.
  void run(const auto& act) {
    if (error_) return;
    try {
      act();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  /// Throws what one of them threw, if one did.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace fsdp
