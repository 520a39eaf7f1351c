// main() of every test program, for Catch2 2 and 3. A program that cannot run here at all calls std::exit(77) after
// saying why; single tests call skip().
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include "support/skip.h"

// Not the number of failed assertions, which Catch2 2 returns: 77 of them would read as skipped.
int main(int argc, char** argv) {
    if (Catch::Session().run(argc, argv) != 0) return 1;
    return nq::test::skipped_cases == 0 ? 0 : 77;
}
