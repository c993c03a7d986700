#pragma once
/// \file
/// Helpers that throw the library's errors and that catch exceptions.

#include <fsdp/error.h>

#include <exception>
#include <string>

#include "comm/core/text.h"

namespace fsdp {

/// Returns the first line of a transport's error message, without the backtrace that may follow.
inline std::string first_line(const std::string& what) { return what.substr(0, what.find('\n')); }

/// Returns the message of an exception without the backtrace that LibTorch's exceptions add.
inline std::string what_without_backtrace(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

/// Throws UsageError with the concatenated `message` unless `ok`. The message is concatenated only if it is thrown.
template <class... Message>
void require(bool ok, const Message&... message) {
  if (!ok) throw UsageError(str_cat(message...));
}

/// Runs `act` and ignores the std::exception that it may throw. Returns whether `act` threw none.
bool try_to(const auto& act) {
  try {
    act();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// Keeps the first exception of several actions, on a rank that must go on to its last action because other ranks wait
/// for it. Not thread-safe.
class FirstError {
 public:
  /// Runs `act` unless an earlier action threw.
  void run(const auto& act) {
    if (error_) return;
    try {
      act();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  /// Rethrows the exception that an action threw, if there is one.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace fsdp
