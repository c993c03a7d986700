#pragma once
/// \file
/// Proofs that a message comes from somebody who knows a secret.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp {

using Digest = std::array<uint8_t, 32>;

/// HMAC-SHA-256 (RFC 2104): whoever does not know `key` cannot find the code of another message.
Digest message_code(std::string_view key, std::string_view message);

/// Takes as long for any two texts of one length.
bool are_equal_secrets(std::string_view a, std::string_view b);

/// 256 random bits, in hexadecimal digits.
std::string random_token();

}  // namespace fsdp
