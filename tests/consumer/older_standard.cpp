// Compiled with -std=c++17, which must say what is missing.

#include <fsdp/fsdp.h>
