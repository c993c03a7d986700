// What libFuzzer calls: any bytes are a safetensors file that is read or refused, without more memory than they have.
// tests/repo/state_fuzz_test.py builds and runs it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "state/format/format_error.h"
#include "state/format/header.h"
#include "state/format/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp::state;
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto length = header_length(bytes, size, "fuzz");
    const auto header = parse_header(text.substr(kLengthBytes, length), size - kLengthBytes - length, "fuzz");
    uint64_t end = 0;
    for (const auto& entry : header.entries) {
      if (entry.begin != end || entry.end < entry.begin) std::abort();
      end = entry.end;
    }
    if (end != size - kLengthBytes - length) std::abort();
  } catch (const FormatError&) {
  }
  try {
    for (const auto& [name, file] : parse_manifest(text, "fuzz").files)
      if (!is_plain_name(name)) std::abort();
  } catch (const FormatError&) {
  }
  return 0;
}
