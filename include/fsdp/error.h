#pragma once
/// \file
/// The exceptions of the library. All of them are `c10::Error`s, so code that catches LibTorch's errors catches ours.
/// Inside TorchScript only the message survives.

#include <c10/util/Exception.h>

#include <string>

namespace fsdp {

/// Base of every error of the library. The message names rank, operation, parameter, expected, found and what to do.
class Error : public c10::Error {
 public:
  explicit Error(const std::string& message);
};

/// The program did something that cannot be right; nothing was communicated, so every rank fails alike.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree: another operation, order, size, model or set of options. The message names both ranks.
class Mismatch : public Error {
 public:
  using Error::Error;
};

/// A rank died or was silent for longer than the timeout.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& message);
  /// The lost rank.
  int rank() const { return rank_; }

 private:
  int rank_;
};

}  // namespace fsdp
