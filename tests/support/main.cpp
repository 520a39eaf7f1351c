// main() of every test program, for Catch2 2 and 3. A test that cannot run here calls std::exit(77) after saying why.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

// Not the number of failed assertions, which Catch2 2 returns: 77 of them would read as skipped.
int main(int argc, char** argv) { return Catch::Session().run(argc, argv) == 0 ? 0 : 1; }
