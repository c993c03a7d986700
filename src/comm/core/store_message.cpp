#include "comm/core/store_message.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <fsdp/error.h>

#include <iomanip>

namespace fsdp {
namespace {

// Threads that are left behind with a store that does not answer may need OpenSSL until the process has ended.
[[maybe_unused]] const int kIsKeptAtExit = OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

}  // namespace

Digest message_code(std::string_view key, std::string_view message) {
  Digest digest;
  const auto* bytes = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes, message.size(), digest.data(), nullptr))
    return digest;
  throw Error("[fsdp] OpenSSL does not compute HMAC-SHA-256. Look at its configuration (openssl.cnf).");
}

bool are_equal_secrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_token() {
  Digest bits;
  if (RAND_bytes(bits.data(), static_cast<int>(bits.size())) != 1)
    throw Error("[fsdp] OpenSSL has no random numbers. Look at its configuration (openssl.cnf).");
  TextWriter token;
  token << std::hex << std::setfill('0');
  for (const int byte : bits) token << std::setw(2) << byte;
  return token.str();
}

}  // namespace fsdp
