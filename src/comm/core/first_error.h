#pragma once
/// \file
/// What went wrong on a rank that goes on, because others wait for it.

#include <exception>

namespace fsdp {

/// Keeps the first exception of several actions. One thread.
class FirstError {
 public:
  /// Runs `act`, unless an earlier one threw.
  void run(const auto& act) {
    if (!error_) try {
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
