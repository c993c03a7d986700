// Proofs of a job's token in the store.

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <iomanip>
#include <sstream>

#include "comm/core/store_message.h"
#include "comm/frame.h"
#include "comm/rendezvous/job_store.h"

namespace fsdp::test {
namespace {

std::string in_hex(const Digest& digest) {
  std::ostringstream text;
  for (const int byte : digest) text << std::hex << std::setfill('0') << std::setw(2) << byte;
  return text.str();
}

// RFC 4231, cases 1, 2 and 6 (a key longer than a block).
TEST(MessageCode, IsThatOfTheStandardAndTokensDiffer) {
  EXPECT_EQ(in_hex(message_code(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(in_hex(message_code("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(in_hex(message_code(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(random_token().size(), 64U);
  EXPECT_NE(random_token(), random_token());
}

TEST(SignedStore, GivesWhatWasWrittenWithTheTokenForTheKeyAndRefusesAllElse) {
  const c10::intrusive_ptr<c10d::Store> plain = c10::make_intrusive<c10d::HashStore>();
  const auto make_signed_store = [&](const char* token) {
    return make_bounded_store(plain, std::chrono::seconds(20), nullptr, token);
  };
  const auto own = make_signed_store("token");
  own->set("key", "value");
  own->set("empty", "");
  EXPECT_EQ(make_signed_store("token")->get_to_str("key"), "value");
  EXPECT_EQ(own->clone()->get_to_str("empty"), "");
  EXPECT_EQ(own->compareSet("first", "", "a"), "a");
  EXPECT_EQ(own->compareSet("first", "", "b"), "a");
  EXPECT_EQ(own->compareSet("first", "a", "c"), "c");
  EXPECT_EQ(own->add("count", 2), 2);

  plain->set("short", "x");
  plain->set("plain", std::string(100, 'x'));
  plain->set("copy", plain->get("key"));
  make_signed_store("another")->set("other", "value");
  for (const char* key : {"short", "plain", "copy", "other"})
    expect_error<Error>([&] { own->get(key); }, {"FSDP_JOB_TOKEN"});
  EXPECT_THROW(own->compareSet("other", "", "mine"), Error);
}

}  // namespace
}  // namespace fsdp::test
