#pragma once
/// \file
/// Exit statuses of the launcher, and the exception that ends it early.

#include <stdexcept>
#include <string>

namespace fsdprun {

// Exit statuses of the launcher itself. If a rank fails, the launcher has the status of the rank that failed first.
constexpr int kFailure = 1;
constexpr int kWrongFlags = 2;
constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;
constexpr int kSignalBase = 128;

/// An exception that ends the launcher. It has a message for the user and the exit status.
class Exit : public std::runtime_error {
 public:
  Exit(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

}  // namespace fsdprun
