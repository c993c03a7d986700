#pragma once
/// \file
/// What errors of the library are made with.

#include <fsdp/error.h>

#include <string>

#include "comm/core/text.h"

namespace fsdp {

/// The words of a transport's error without the backtrace that may follow them.
inline std::string first_line(const std::string& what) { return what.substr(0, what.find('\n')); }

/// Throws UsageError made of `message` unless `ok`; the message is put together only then.
template <class... Message>
void require(bool ok, const Message&... message) {
  if (!ok) throw UsageError(str_cat(message...));
}

}  // namespace fsdp
