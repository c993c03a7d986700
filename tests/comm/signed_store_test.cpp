// Proofs of a job's token in the store.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <iomanip>
#include <sstream>

#include "comm/core/message_code.h"
#include "comm/error_of.h"
#include "comm/rendezvous/signed_store.h"

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

class SignedStoreTest : public testing::Test {
 protected:
  c10::intrusive_ptr<c10d::Store> plain_ = c10::make_intrusive<c10d::HashStore>();
  c10::intrusive_ptr<c10d::Store> own_ = make_signed_store(plain_, "token");
};

TEST_F(SignedStoreTest, GivesWhatWasWrittenWithTheToken) {
  own_->set("key", "value");
  own_->set("empty", "");
  EXPECT_EQ(make_signed_store(plain_, "token")->get_to_str("key"), "value");
  EXPECT_EQ(own_->clone()->get_to_str("empty"), "");
  EXPECT_EQ(own_->compareSet("first", "", "a"), "a");
  EXPECT_EQ(own_->compareSet("first", "", "b"), "a");
  EXPECT_EQ(own_->compareSet("first", "a", "c"), "c");
  EXPECT_EQ(own_->add("count", 2), 2);
}

TEST_F(SignedStoreTest, RefusesWhatWasWrittenWithoutIt) {
  plain_->set("short", "x");
  plain_->set("plain", std::string(100, 'x'));
  make_signed_store(plain_, "another")->set("other", "value");
  for (const char* key : {"short", "plain", "other"})
    EXPECT_THAT(error_of<Error>([&] { own_->get(key); }), testing::HasSubstr("FSDP_JOB_TOKEN")) << key;
  EXPECT_THROW(own_->compareSet("other", "", "mine"), Error);
}

TEST_F(SignedStoreTest, RefusesAValueThatWasWrittenForAnotherKey) {
  own_->set("mine", "value");
  plain_->set("yours", plain_->get("mine"));
  EXPECT_THROW(own_->get("yours"), Error);
}

}  // namespace
}  // namespace fsdp::test
