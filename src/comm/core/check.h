#pragma once
/// \file
/// The one place that decides how an error of the library begins.

#include <c10/util/StringUtil.h>
#include <fsdp/error.h>

#include <string>
#include <string_view>

namespace fsdp {

/// "[fsdp rank 1/4] all_gather: "
inline std::string where(int rank, int world_size, std::string_view operation) {
  return c10::str("[fsdp rank ", rank, '/', world_size, "] ", operation, ": ");
}

/// The words of a transport's error without the backtrace that may follow them.
inline std::string first_line(const std::string& what) { return what.substr(0, what.find('\n')); }

/// Throws UsageError made of `message` unless `ok`; the message is put together only then.
template <class... Message>
void require(bool ok, const Message&... message) {
  if (!ok) throw UsageError(c10::str(message...));
}

}  // namespace fsdp
