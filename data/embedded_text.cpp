#include "embedded_text.h"

// FSDP_TINY_SHAKESPEARE is the path of the file. The assembler copies its bytes; the compiler never sees them.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    "fsdp_tiny_shakespeare_begin:\n"
    ".incbin \"" FSDP_TINY_SHAKESPEARE
    "\"\n"
    "fsdp_tiny_shakespeare_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
[[gnu::visibility("hidden")]] extern const char fsdp_tiny_shakespeare_begin[];
[[gnu::visibility("hidden")]] extern const char fsdp_tiny_shakespeare_end[];
}

namespace fsdp {

std::string_view tiny_shakespeare() {
  return {fsdp_tiny_shakespeare_begin, static_cast<size_t>(fsdp_tiny_shakespeare_end - fsdp_tiny_shakespeare_begin)};
}

}  // namespace fsdp
