// This file is compiled with -std=c++17. The error must say what is missing.

#include <fsdp/fsdp.h>
