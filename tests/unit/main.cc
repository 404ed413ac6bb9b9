// Catch2 3 has its own main; Catch2 2 makes one here, in a file that is compiled once.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
