#pragma once
/// \file
/// Validators for the values of flags, to be passed to CLI::Option::check. The validators of numbers refuse infinities
/// and NaN.

#include <limits>

namespace CLI {
class Validator;
}

namespace frame {

CLI::Validator positive_number();
CLI::Validator number_from_0(double most = std::numeric_limits<double>::max());
/// Accepts whole numbers from 1 to 2^30.
CLI::Validator count();
CLI::Validator count_or_none();
CLI::Validator seed();
/// Accepts a number of threads for one rank.
CLI::Validator threads();
/// Accepts a path that is not empty. An empty path usually comes from a shell variable that is not set.
CLI::Validator path();

}  // namespace frame
