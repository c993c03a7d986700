#pragma once
/// \file
/// The exceptions of the library. All of them derive from `c10::Error`, so handlers for LibTorch's errors catch them.
/// If an exception passes through TorchScript, only its message is kept.
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

/// Base class of the library's errors. A message names the rank, the operation, the parameter, what was expected and
/// found, and what to do. The library throws Error itself if no derived class fits, for example for a broken
/// connection, a failed rank of spawn, or a norm that is not finite.
class Error : public c10::Error {
 public:
  /// Makes an error with this message, without a backtrace.
  explicit Error(const std::string& message);
};

/// Error of an invalid call. The library throws it before it communicates, so all ranks that make the same call fail in
/// the same way.
class UsageError : public Error {
 public:
  /// Makes an error with this message.
  using Error::Error;
};

/// Error of ranks that disagree about the operation, its order, its sizes, the model or options. The message names both
/// ranks.
class Mismatch : public Error {
 public:
  /// Makes an error with this message.
  using Error::Error;
};

/// Error of a rank that died, left, or does not respond.
class PeerLost : public Error {
 public:
  /// Makes an error with the lost rank's number and this message.
  PeerLost(int rank, const std::string& message);
  /// Returns the number of the lost rank in the process group from which all others were split.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
