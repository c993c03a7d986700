#pragma once
/// \file
/// A locale with separators in its numbers, as a program may choose for its users. No system package is needed.

#include <cstdlib>
#include <locale>
#include <string>

namespace fsdp::test {

/// Writes 1234.5 as "1 2 3 4,5". Groups have one digit, so every number of two digits shows whether the locale was
/// used.
class Separators : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return ' '; }
  std::string do_grouping() const override { return "\1"; }
};

/// Makes the locale global, so std::ostream and everything that is written with it use the separators.
inline void take_locale_with_separators() { std::locale::global(std::locale(std::locale::classic(), new Separators)); }

/// Takes the locale if FSDP_TEST_SEPARATORS is set, so that a whole test suite can run with it.
inline void take_locale_of_environment() {
  if (std::getenv("FSDP_TEST_SEPARATORS") != nullptr) take_locale_with_separators();
}

}  // namespace fsdp::test
