#pragma once
/// \file
/// The exceptions of the library. All of them are `c10::Error`s, so code that catches LibTorch's errors catches ours.
/// Inside TorchScript only the message survives.
///
///     try {
///       model(x).sum().backward();
///     } catch (const fsdp::PeerLost& error) {
///       std::cerr << error.what_without_backtrace() << " (rank " << error.rank() << ")\n";
///     }

#include <c10/util/Exception.h>

#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup ranks
/// \{

/// Base of every error of the library. The message names rank, operation, parameter, expected, found and what to do.
/// Thrown itself where none of the others fits: a broken connection, a failed rank of spawn, a norm that is not finite.
class Error : public c10::Error {
 public:
  /// With this message, without a backtrace.
  explicit Error(const std::string& message);
};

/// The program did something that cannot be right. Nothing was communicated, so ranks that run the same program fail
/// alike.
class UsageError : public Error {
 public:
  /// With this message.
  using Error::Error;
};

/// Ranks disagree: another operation, order, size, model or set of options. The message names both ranks.
class Mismatch : public Error {
 public:
  /// With this message.
  using Error::Error;
};

/// A rank died, left, or does not answer.
class PeerLost : public Error {
 public:
  /// Of the lost rank's number, with this message.
  PeerLost(int rank, const std::string& message);
  /// The lost rank, by its number in the group from which all others were split.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
